"""`geofix serve`: the `vllm` command with the right flags, one clear line where there is none; keys of clients."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app


def test_a_missing_vllm_is_said_in_one_line(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["serve", str(checkpoint), "--engine", "vllm"])
    assert done.exit_code == 1
    [line] = done.stderr.splitlines()
    assert "there is no `vllm` command here; install it in an environment of its own" in line


def test_vllm_is_started_with_the_models_files(checkpoint: Path, tmp_path: Path) -> None:
    """A stand-in that writes down its arguments: vLLM itself needs a GPU."""
    program, told = tmp_path / "vllm", tmp_path / "told.json"
    record = f"json.dump([os.environ['VLLM_API_KEY'], *sys.argv[1:]], open({str(told)!r}, 'w'))"
    program.write_text(f"#!{sys.executable}\nimport json, os, sys\n{record}\n")
    program.chmod(0o755)
    command = [sys.executable, "-m", "flows.cli", "serve", str(checkpoint), "--engine", "vllm", "--port", "8123"]
    environment = {**os.environ, "PATH": os.pathsep.join([str(tmp_path), os.environ["PATH"]]), "MY_KEY": "sk-canary"}
    options = ["--max-context", "2048", "--key-env", "MY_KEY"]
    done = subprocess.run([*command, *options], env=environment, check=False, timeout=120, capture_output=True)
    assert done.returncode == 0 and b"canary" not in done.stdout + done.stderr
    key, verb, folder, *flags = json.loads(told.read_text())
    assert (key, verb, folder) == ("sk-canary", "serve", str(checkpoint))
    alone = flags.index("--enable-auto-tool-choice")
    flags = [*flags[:alone], *flags[alone + 1 :]]
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    assert given == {
        "--host": "127.0.0.1", "--port": "8123", "--served-model-name": "tiny-model", "--max-model-len": "2048",
        "--chat-template": str(checkpoint / "chat_template.jinja"), "--limit-mm-per-prompt": '{"image": 16}',
        "--tool-call-parser": "hermes", "--allowed-origins": "[]",
        **({} if list(Path("/dev").glob("nvidia[0-9]*")) else {"--dtype": "float32"}),
    }  # fmt: skip
    assert (checkpoint / "chat_template.jinja").is_file()


def test_the_embedded_engine_asks_for_the_key(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []

    def main(options: list[str]) -> int:
        called.append(options)
        return 0

    monkeypatch.setattr("infra.serve.server.main", main)
    monkeypatch.setenv("MY_KEY", "sk-canary")
    done = CliRunner().invoke(app, ["serve", str(checkpoint), "--key-env", "MY_KEY"])
    assert done.exit_code == 0 and called[0][-2:] == ["--key-env", "MY_KEY"] and "canary" not in done.output
    done = CliRunner().invoke(app, ["serve", str(checkpoint), "--key-env", "UNSET_KEY"])
    assert (done.exit_code, len(called)) == (2, 1)
    assert done.stderr == "geofix: --key-env UNSET_KEY: this environment variable is not set; it holds the key\n"
