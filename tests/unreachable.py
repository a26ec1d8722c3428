"""Run a command where every packet to the outside is lost, and write down where those packets wanted to go.

    unshare --map-root-user --net python tests/unreachable.py LOG COMMAND…

The default route of the network namespace leads to this process, which answers nothing, as a
firewall that drops packets does: what waits for a time-out there waits here.
"""

import fcntl
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
HERE, GATEWAY = "10.99.99.1", "10.99.99.2"


def main(log: str, command: list[str]) -> int:
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH", b"lost0", IFF_TUN | IFF_NO_PI))
    for words in (
        "link set lo up",
        f"addr add {HERE}/24 dev lost0",
        "link set lost0 up",
        f"route add default via {GATEWAY}",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    threading.Thread(target=_note, args=(tun, log), daemon=True).start()
    return subprocess.run(command, check=False).returncode


def _note(tun: int, log: str) -> None:
    with Path(log).open("a") as file:
        while True:
            packet = os.read(tun, 65535)
            if packet[0] >> 4 == 4:  # the system itself greets neighbours in IPv6
                data = "".join(chr(byte) if 32 < byte < 127 else "." for byte in packet[28:])
                print(socket.inet_ntoa(packet[16:20]), data, file=file, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
