"""The private Ray: on loopback only, in a folder of its own, and gone afterwards."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, os, psutil, ray
from schemas.settings.spread import SpreadSettings
from tasks.runtime.ray_private import local_node, restore_home
from tasks.runtime.ray_start import start_ray, stop_ray

start_ray(SpreadSettings())
start_ray(SpreadSettings())  # a second call changes nothing

@ray.remote
def home():
    restore_home()
    return os.environ["HOME"]

home_of_worker = ray.get(home.remote())
family = [psutil.Process(), *psutil.Process().children(recursive=True)]
listening = [c.laddr.ip for p in family for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
folder = local_node().logs
stop_ray()
print(json.dumps({"listening": listening, "home": home_of_worker, "folder": folder}))
"""


def test_it_listens_on_loopback_only_and_leaves_nothing(tmp_path: Path) -> None:
    import json

    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=900, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["listening"], "Ray listens somewhere"
    assert {address.removeprefix("::ffff:") for address in found["listening"]} == {"127.0.0.1"}
    assert found["home"] == str(tmp_path), "workers see the user's own HOME"
    assert not Path(found["folder"]).exists()
    assert list(tmp_path.iterdir()) == [], "no token or configuration is left in the user's home"
