"""An object store with S3's protocol: SeaweedFS, its parts in one process."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from infra.real_servers.environments import program
from infra.real_servers.processes import environment, free_ports, running

KEYS = {"AWS_ACCESS_KEY_ID": "loopback", "AWS_SECRET_ACCESS_KEY": "loopback-secret", "AWS_REGION": "us-east-1"}
_PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")


@contextlib.contextmanager
def serving(folder: Path, home: Path) -> Iterator[dict[str, str]]:
    """The environment of a client of the store, which has no bucket yet."""
    objects, config = home / "objects", home / "seaweedfs.json"
    objects.mkdir()
    credentials = [{"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}]
    identity = {"name": "loopback", "credentials": credentials, "actions": ["Admin", "Read", "Write", "List"]}
    config.write_text(json.dumps({"identities": [identity]}))
    port, grpc, *ports = free_ports(2 + len(_PORTS))
    command: list[str | Path] = [
        program(folder, "seaweedfs"),
        "server",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={objects}",
    ]
    command += [f"-{name}={number}" for name, number in zip(_PORTS, ports, strict=True)]
    command += ["-filer", "-s3", f"-s3.port={port}", f"-s3.port.grpc={grpc}", f"-s3.config={config}"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=20", "-master.volumeSizeLimitMB=64"]
    url = f"http://127.0.0.1:{port}"
    with running(command, url, home / "seaweedfs.log", environment(), cwd=home):
        yield {**KEYS, "AWS_ENDPOINT_URL": url}
