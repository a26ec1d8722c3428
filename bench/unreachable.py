"""Run a command where every packet to the outside is lost, and write down where those packets wanted to go.

    python -m bench.unreachable LOG COMMAND…

The command gets a network namespace of its own. Its default route leads to this process, which answers nothing, as a
firewall that drops packets does: what waits for a time-out there waits here.
"""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
HERE, GATEWAY = "10.99.99.1", "10.99.99.2"


def is_possible() -> bool:
    """Whether this machine lets us: Linux with namespaces, `unshare`, `ip` and /dev/net/tun."""
    if not (shutil.which("unshare") and shutil.which("ip") and Path("/dev/net/tun").exists()):
        return False
    probe = [*inside(os.devnull), "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def inside(log: str | Path) -> list[str]:
    """What to put before a command."""
    return ["unshare", "--map-root-user", "--net", sys.executable, str(Path(__file__).resolve()), str(log)]


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
