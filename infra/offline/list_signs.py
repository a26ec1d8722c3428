"""Lists the signs of a large world by word, and keeps them in a file for the server that started this process.

python -m infra.offline.list_signs SEED SIZE MODE…
"""

import os
import sys
import threading

from infra.offline.sign_index import SignIndex
from infra.offline.world import Modes, World


def _end_with_the_server() -> None:
    sys.stdin.buffer.read()  # it is the server's, and ends with it
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    SignIndex(World(int(sys.argv[1]), int(sys.argv[2]), modes=Modes(**dict.fromkeys(sys.argv[3:], True)))).write()
    os._exit(0)  # at once: the thread above cannot be ended
