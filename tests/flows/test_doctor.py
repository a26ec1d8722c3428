"""`geofix doctor`: one screen, and an exit code that says whether the profile can run."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows import doctor
from flows.cli.application import app

KEYS = ("MAPILLARY_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "TAVILY_API_KEY", "AMAP_KEY")
CANARY = "canary-5f0c21ab90"
SERVICES = ("mapillary", "stac", "geocoder", "search", "chat", "maps")


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Refuses everything, as services do that want a key; keeps what was sent."""
    sent: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent.append(dict(self.headers))
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{found.server_port}", sent
    found.shutdown()
    found.server_close()


def asked(lake: Path, *arguments: str) -> tuple[int, dict[str, dict[str, str]], str]:
    done = CliRunner().invoke(app, ["doctor", "--lake", str(lake), "--json", *arguments])
    said = json.loads(done.output)
    assert said["can_run"] is (done.exit_code == 0)
    return done.exit_code, {one["about"]: one for one in said["findings"]}, done.output


def at(url: str) -> list[str]:
    given = [
        *(f"services.{name}.base_url={url}/{name}" for name in SERVICES),
        *(f"models.endpoints.{name}.base_url={url}/v1" for name in ("policy", "anthropic")),
    ]
    return [part for one in given for part in ("--set", one)]


def test_the_offline_profile_can_run_and_nothing_is_written(tmp_path: Path) -> None:
    code, found, _ = asked(tmp_path / "lake")
    assert code == 0, found
    assert found["lake"]["verdict"] == found["keys"]["verdict"] == found["Ray"]["verdict"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_profile_whose_keys_are_there_and_whose_services_answer_can_run(
    tmp_path: Path, server: tuple[str, list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, sent = server
    for name in KEYS:
        monkeypatch.setenv(name, CANARY)
    tiny = ("--set", "train.base=tiny")  # the recipe's own is not on this machine
    code, found, said = asked(tmp_path / "lake", "--profile", "production", *at(url), *tiny)
    assert code == 0, found
    assert "answers" in found["models anthropic"]["text"] and found["base"]["text"].startswith("tiny")
    assert "answers" in found["mapillary"]["text"] and "answers" in found["models policy"]["text"]
    assert CANARY not in said + str(sent)  # no key is sent or shown


def test_missing_keys_and_services_are_named_and_the_exit_code_is_1(
    tmp_path: Path, server: tuple[str, list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    nowhere = ("--set", "services.stac.base_url=http://127.0.0.1:9", "--set", "spread.address=127.0.0.1:9")
    code, found, _ = asked(tmp_path / "lake", "--profile", "production", *at(server[0]), *nowhere)
    assert code == 1
    missing = {name for name, one in found.items() if one["verdict"] == "missing"}
    assert missing == {"keys", "stac", "Ray", "base"}
    assert "train.base=Qwen/Qwen2.5-VL-7B-Instruct: neither a folder here" in found["base"]["text"]
    assert "MAPILLARY_TOKEN (services.mapillary.key_env)" in found["keys"]["text"]


def test_a_service_that_never_answers_is_named(
    tmp_path: Path, server: tuple[str, list[dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        silent_stac = ("--set", f"services.stac.base_url={url}")
        code, found, _ = asked(tmp_path / "lake", "--profile", "production", *at(server[0]), *silent_stac)
    assert code == 1 and found["stac"] == {
        "about": "stac", "verdict": "missing", "text": f"{url} does not answer within 0.5 s"
    }  # fmt: skip


def test_a_base_that_nothing_names_is_missing(tmp_path: Path) -> None:
    _, found, _ = asked(tmp_path / "lake", "--profile", "production", "--set", "train.base=''")
    assert found["base"]["verdict"] == "missing" and "names no model to train" in found["base"]["text"]


def test_an_extra_that_the_profile_needs_is_missing_and_another_one_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = {"offline": ["rapidocr"], "trace": ["opentelemetry.exporter.otlp.proto.http"]}
    monkeypatch.setattr(doctor, "missing_modules", lambda extra: absent.get(extra, []))
    code, found, _ = asked(tmp_path / "lake")
    assert code == 1 and found["extra offline"]["verdict"] == "missing"
    assert "pip install 'geofix[offline]'" in found["extra offline"]["text"]
    assert found["extra trace"]["verdict"] == "note"


def test_a_gpu_is_described_by_what_it_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 9.0'\necho 'Tesla T4, 15360, 7.5'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(doctor, "_torch", lambda: doctor.Finding("torch", "ok", "uses the GPU"))
    _, found, _ = asked(tmp_path / "lake")
    assert "NVIDIA H200, 140 GiB, bfloat16, trains up to about 10 billion" in found["GPU 0"]["text"]
    assert "no bfloat16: set train.precision=fp32" in found["GPU 1"]["text"]


def test_the_screen_is_one_screen(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--lake", str(tmp_path / "lake")], env={"COLUMNS": "120"})
    lines = done.output.splitlines()
    assert done.exit_code == 0 and lines[-1] == "can run"
    assert len(lines) <= 24
