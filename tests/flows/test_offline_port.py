"""Commands at the same time: each works on the Earth it asked for, and keeps it to the end."""

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.servers import Server, answers, free_port, listen_on, offline_world
from infra.offline.faults import Faults
from infra.offline.server import create_app, make_server, serving
from infra.offline.server import main as offline_main
from infra.offline.world import World
from infra.serve.server import main as serve_main
from schemas.config import Config

pytestmark = pytest.mark.whole

SEED, SIZE = 7, 20
ONE_RULE = '{"rules": [{"service": "mapillary", "kind": "status", "status": 500, "rate": 0.1}]}'


def config(port: int, seed: int = SEED) -> Config:
    return Config.model_validate({"offline": {"serve": True, "port": port, "seed": seed, "size": SIZE}})


def port_of(reachable: Config) -> int:
    return int(reachable.services.mapillary.base_url.split(":")[2].split("/")[0])


@contextlib.contextmanager
def world(seed: int = SEED, *, passing: bool = False, faults: Faults | None = None) -> Iterator[int]:
    """A world somebody else runs; gives its port."""
    with serving(create_app(World(seed, SIZE), faults, passing=passing, warm=False)) as url:
        yield int(url.rpartition(":")[2])


def test_nobody_takes_the_port_between_the_choice_and_the_start(tmp_path: Path) -> None:
    with listen_on(0) as probe:
        port = probe.getsockname()[1]
    with offline_world(config(port), tmp_path / "log") as (reachable, start):
        port = port_of(reachable)
        other = make_server(create_app(World(99, SIZE), warm=False), port=port)
        with pytest.raises(SystemExit):
            other.run()  # address in use
        with offline_world(config(port), tmp_path / "other.log") as (elsewhere, _):
            assert port_of(elsewhere) != port
        start()
        assert answers(f"http://127.0.0.1:{port}/health")
    assert not answers(f"http://127.0.0.1:{port}/health")


def test_a_world_that_is_wanted_early_begins_by_itself(tmp_path: Path) -> None:
    with offline_world(config(free_port()), tmp_path / "log", early=True) as (reachable, _):
        health, end = f"http://127.0.0.1:{port_of(reachable)}/health", time.monotonic() + 120
        while not answers(health) and time.monotonic() < end:
            time.sleep(0.2)
        assert answers(health)
    assert not answers(health)


def test_a_world_that_ends_with_another_command_is_not_used(tmp_path: Path) -> None:
    with world(passing=True) as port, offline_world(config(port), tmp_path / "log") as (reachable, _):
        assert port_of(reachable) != port


def test_a_world_somebody_keeps_is_used_and_its_oddities_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with world() as port, offline_world(config(port), tmp_path / "log") as (reachable, _):
        assert port_of(reachable) == port and not caplog.text
    with world() as port, offline_world(config(port, seed=8), tmp_path / "log") as (reachable, _):
        assert port_of(reachable) != port
    with (
        world(faults=Faults.from_json(ONE_RULE)) as port,
        offline_world(config(port), tmp_path / "log") as (reachable, _),
    ):
        assert port_of(reachable) == port
        assert f"using the offline world that runs at port {port}, with 1 fault rules" in caplog.text


@pytest.mark.parametrize("main", [offline_main, serve_main])
def test_every_server_of_ours_takes_an_open_socket(
    main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--listening-fd" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("port", "code", "words"),
    [("80000", 2, "--port 80000: a port is between 0 (any free one) and 65535"), ("-1", 2, "between 0")],
)
def test_a_port_that_is_none_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], port: str, code: int, words: str
) -> None:
    assert offline_main(["--port", port, "--size", str(SIZE)]) == code
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and said.out == ""


def test_an_address_is_printed_only_once_it_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with listen_on(0) as taken:
        port = taken.getsockname()[1]
        assert offline_main(["--port", str(port), "--size", str(SIZE)]) == 1
        said = capsys.readouterr()
        assert said.out == "", "the port is another server's"
        assert f"127.0.0.1:{port}: Address already in use; choose another --port" in said.err
    command = [sys.executable, "-m", "infra.offline", "--port", "0", "--size", str(SIZE), "--lifeline"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(f"{address}/health", timeout=300) as answer:  # it waits, it is not refused
            assert answer.status == 200
    finally:
        process.terminate()
        process.communicate(timeout=300)


def test_the_socket_is_closed_although_the_server_was_never_needed(tmp_path: Path) -> None:
    listen_socket = listen_on(0)
    Server([sys.executable, "-c", ""], "http://127.0.0.1:9/health", tmp_path / "log", listen_socket).stop()
    assert listen_socket.fileno() == -1
