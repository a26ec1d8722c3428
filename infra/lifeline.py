"""A server that ends with the program that started it, even when that program is killed."""

import os
import sys
import threading


def exit_when_stdin_closes() -> None:
    """End this process once standard input is at its end: the starter holds the other end of the pipe."""

    def watch() -> None:
        while sys.stdin.buffer.read(1):
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True, name="lifeline").start()
