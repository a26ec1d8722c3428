"""`geofix serve --engine vllm`: the `vllm` command with the right flags, one clear line where there is none."""

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
    program.write_text(f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], open({str(told)!r}, 'w'))\n")
    program.chmod(0o755)
    command = [sys.executable, "-m", "flows.cli", "serve", str(checkpoint), "--engine", "vllm", "--port", "8123"]
    environment = {**os.environ, "PATH": os.pathsep.join([str(tmp_path), os.environ["PATH"]])}
    done = subprocess.run([*command, "--max-context", "2048"], env=environment, check=False, timeout=120)
    assert done.returncode == 0
    verb, folder, *flags = json.loads(told.read_text())
    assert (verb, folder) == ("serve", str(checkpoint))
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
