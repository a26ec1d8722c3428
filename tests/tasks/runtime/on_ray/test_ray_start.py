"""The private Ray: on loopback only, in a folder of its own, and gone afterwards."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows.session import check_before
from schemas.errors import GeofixError
from schemas.load import load_config
from tasks.runtime.on_ray.start import LONGEST_SOCKET, folder_of


def _has_interface() -> bool:
    addresses = [
        one.address for found in psutil.net_if_addrs().values() for one in found if one.family == socket.AF_INET
    ]
    return any(not address.startswith("127.") for address in addresses)


PROGRAM = """
import contextlib, io, json, os, psutil, signal, time
from schemas.settings.spread import SpreadSettings
from tasks.runtime.on_ray.start import current_session, start_ray, stop_ray
import ray

start_ray(SpreadSettings())
start_ray(SpreadSettings())  # a second call changes nothing

@ray.remote
def home():
    return os.environ["HOME"]

home_of_worker = ray.get(home.remote())

@ray.remote(max_retries=0)
def end():
    os.kill(os.getpid(), signal.SIGKILL)

with contextlib.redirect_stdout(io.StringIO()) as printed:
    with contextlib.suppress(ray.exceptions.RayError):
        ray.get(end.remote())
    deadline = time.monotonic() + 60
    while "(raylet)" not in printed.getvalue() and time.monotonic() < deadline:
        time.sleep(0.1)
sockets, listening = [], []
for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
    with contextlib.suppress(psutil.Error):  # a worker may end while it is looked at
        sockets += [c.laddr for c in process.net_connections("unix") if "plasma_store" in c.laddr]
        listening += [c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
folder = current_session().address_info["session_dir"]
stop_ray()
print(json.dumps({"sockets": sockets, "pid": os.getpid(), "listening": listening, "home": home_of_worker,
                  "folder": folder, "printed": printed.getvalue()}))
"""


@pytest.mark.whole
def test_it_listens_on_loopback_only_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["listening"], "Ray listens somewhere"
    assert {address.removeprefix("::ffff:") for address in found["listening"]} == {"127.0.0.1"}
    assert found["printed"].startswith("(raylet) A worker died") and "\x1b" not in found["printed"]
    longest = LONGEST_SOCKET.format(pid=found["pid"])
    assert {len(one) for one in found["sockets"]} == {len(str(folder_of(found["pid"]) / longest))}
    assert found["home"] == str(tmp_path), "workers see the user's own HOME"
    assert not Path(found["folder"]).exists()
    assert list(tmp_path.iterdir()) == [], "no token or configuration is left in the user's home"


IMPORTED_FIRST = """
import ray
from schemas.errors import GeofixError
from schemas.settings.spread import SpreadSettings
from tasks.runtime.on_ray.start import start_ray

try:
    start_ray(SpreadSettings())
except GeofixError as error:
    print(error, ray.is_initialized())
"""


@pytest.mark.whole
@pytest.mark.skipif(not _has_interface(), reason="this machine has no interface but loopback")
def test_it_does_not_stay_up_on_another_interface() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED_FIRST], env=environment, capture_output=True, text=True, timeout=900, check=True
    )
    assert "not on loopback only" in done.stdout and done.stdout.rstrip().endswith("False")


def test_a_temporary_folder_with_a_long_name_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/tmp/" + "long" * 35)
    with pytest.raises(GeofixError, match="is too long for the sockets of Ray: set TMPDIR"):
        check_before(load_config(profile="offline"), ["collect"])
    check_before(load_config(profile="offline"), ["plan"])  # runs without Ray
