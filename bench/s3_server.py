"""An S3-compatible server on loopback, as a process of its own: moto over werkzeug.

    python -m bench.s3_server --port 9000 --bucket lake

moto checks the condition of a conditional write (If-None-Match, If-Match) and stores the object in two steps. S3
promises one, and Delta commits depend on it, so writes are serialised here. Objects live in the process's memory and
temporary files and end with it.
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "loopback", "AWS_SECRET_ACCESS_KEY": "loopback", "AWS_REGION": "us-east-1"}
START_S = 60.0

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"


def atomic_writes(application: Application, denied: Path | None = None) -> Application:
    """The application with one write at a time; reads go on beside it. While `denied` exists, no key is valid."""
    writing = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if denied is not None and denied.exists():
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))  # else the connection cannot go on
            start_response(
                "403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(EXPIRED)))]
            )
            return [EXPIRED]
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return application(environ, start_response)
        with writing:
            return list(application(environ, start_response))

    return serve


def serve(port: int, bucket: str, denied: Path | None = None) -> None:
    """Serve until the parent process ends."""
    os.environ.update(CREDENTIALS)
    import boto3
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"  # keeps connections open

        def log_request(self, *args: Any, **keywords: Any) -> None:
            return

    application = atomic_writes(DomainDispatcherApplication(create_backend_app), denied)
    server = make_server("127.0.0.1", port, application, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}").create_bucket(Bucket=bucket)
    print(f"http://127.0.0.1:{port}", flush=True)
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)


@contextlib.contextmanager
def s3_server(bucket: str = "lake", denied: Path | None = None) -> Iterator[dict[str, str]]:
    """A server process with one bucket; gives the environment variables with which clients reach it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "bench.s3_server", "--port", str(port), "--bucket", bucket]
    command += ["--denied", str(denied)] if denied else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        endpoint = process.stdout.readline().strip()
        if not endpoint:
            raise RuntimeError(f"the S3 server did not start (exit code {process.wait(START_S)})")
        yield {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bucket", default="lake")
    parser.add_argument("--denied", type=Path, metavar="FILE", help="while this file exists, every request is refused")
    given = parser.parse_args()
    serve(given.port, given.bucket, given.denied)


if __name__ == "__main__":
    main()
