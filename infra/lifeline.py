"""A server that ends with the program that started it, even when that program is killed, and listens where it says."""

import os
import socket
import sys
import threading
import time

import uvicorn


def exit_when_stdin_closes() -> None:
    """End this process once standard input is at its end: the starter holds the other end of the pipe."""

    def watch() -> None:
        while sys.stdin.buffer.read(1):
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True, name="lifeline").start()


def exit_when_orphaned(every_s: float = 1.0) -> None:
    """End this process once the one that forked it has ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(every_s)
        os._exit(0)

    threading.Thread(target=watch, daemon=True, name="orphaned").start()


def serve_at(server: uvicorn.Server, listening_fd: int | None) -> None:
    """Serve on the socket the starter opened (no other process can take the port), else on the server's own."""
    if listening_fd is None:
        server.run()
    else:
        # Not uvicorn's own `fd`: it takes the socket for a Unix one, which leaves Nagle's delay on.
        server.run(sockets=[socket.socket(fileno=listening_fd)])
