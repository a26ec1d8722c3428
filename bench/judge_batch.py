"""Judging pictures with a pool: through Ray, by HTTP, and plain vLLM offline, in pictures a second.

The same questions about the same pictures of 2 megapixels (--tiny: small ones, on CPUs), answered with a fixed number
of tokens by a model of random weights. Through Ray is a pool with `transport: ray`; by HTTP is vLLM's own server; both
are asked by the product's chat client. Offline is `LLM.chat` over all pictures at once. vLLM runs in the Python that
GEOFIX_VLLM_PYTHON names, else .venv-vllm/bin/python.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench.goals import Goal, judge
from bench.qwen_gpu import NOT_RUN, SHAPES, no_gpu
from flows.pools import RunPools
from flows.servers import free_port
from schemas.config import Config
from schemas.messages import text_part
from schemas.settings.train import TinySettings
from tasks.curate.verdict import SYSTEM, question_about
from tasks.imaging.images import to_data_uri
from tasks.lake import Lake
from tasks.runtime.on_ray.model_pools import vllm_python
from tasks.runtime.on_ray.start import stop_ray
from tasks.services import Chat, connect

SHARE = 0.9
CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
AT_ONCE = 128  # requests under way


def checkpoint(folder: Path, shape: str | None) -> None:
    """A tiny model with random weights, or a shape's configuration alone: vLLM draws its weights."""
    from tasks.train.tiny import build_model, build_processor

    tiny = TinySettings(vocabulary=4096, hidden=64, layers=1, intermediate=64, vision_hidden=32, vision_layers=1)
    largest = 28 * 28 * 16 if shape is None else 2_000_000
    processor = build_processor([SYSTEM, question_about("photo")], tiny, 28 * 28 * 4, largest)
    processor.save_pretrained(folder)
    model = build_model(processor, tiny, 0)
    if shape is None:
        model.save_pretrained(folder)
        return
    config = SHAPES[shape].config()
    for name in ("image", "video", "vision_start", "vision_end"):
        setattr(config, f"{name}_token_id", getattr(model.config, f"{name}_token_id"))
    config.text_config.eos_token_id = processor.tokenizer.eos_token_id
    config.architectures = ["Qwen3VLForConditionalGeneration" if "qwen3" in shape else type(model).__name__]
    config.save_pretrained(folder)


def requests_of(pictures: int, side: int, tokens: int, model: str) -> list[dict[str, Any]]:
    found = []
    for number in range(pictures):
        noise = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(noise).resize((side, side), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
        question = [
            {"type": "image_url", "image_url": {"url": to_data_uri(out.getvalue())}},
            text_part(question_about("photo")),
        ]
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        found.append({"model": model, "messages": messages, "max_tokens": tokens})
    return found


def seconds_of(config: Config, requests: list[dict[str, Any]]) -> float:
    """Of the second half of the requests, by the product's client; the first half warms up."""

    async def ask() -> float:
        chat = Chat(connect(config.services, {}, (), config.models, ["judge"]).chat)
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(request: dict[str, Any]) -> None:
            async with limit:
                reply = await chat.complete(
                    "judge", request["messages"], temperature=0, max_tokens=request["max_tokens"],
                    extra_body={"ignore_eos": True},
                )  # fmt: skip
                assert reply.usage.completion_tokens == request["max_tokens"], reply

        half = len(requests) // 2
        try:
            await asyncio.gather(*(one(request) for request in requests[:half]))
            began = time.perf_counter()
            await asyncio.gather(*(one(request) for request in requests[half:]))
            return time.perf_counter() - began
        finally:
            await chat.close()

    return asyncio.run(ask())


def through_ray(model: str, engine_args: dict[str, Any], gpus: int, requests: list[dict[str, Any]]) -> float:
    settings = {
        "model": model, "gpus": gpus, "transport": "ray", "engine_args": engine_args,
        "env": {} if gpus else CPU_ENV, "start_s": 3600,
    }  # fmt: skip
    config = Config.model_validate({"models": {"pools": {"eyes": settings}, "roles": {"judge": {"endpoint": "eyes"}}}})
    with tempfile.TemporaryDirectory() as folder:
        pools = RunPools(config, Lake(Path(folder) / "lake"), ["curate"])
        try:
            pools.check()
            pools.ensure(pools.plans(["eyes"]))
            return seconds_of(raised(pools.configured(config)), requests)
        finally:
            pools.close()
            stop_ray()


def raised(config: Config) -> Config:
    """With as many requests at once as are measured."""
    eyes = config.models.endpoints["eyes"].model_copy(update={"max_concurrency": AT_ONCE})
    models = config.models.model_copy(update={"endpoints": {**config.models.endpoints, "eyes": eyes}})
    return config.model_copy(update={"models": models})


@contextlib.contextmanager
def vllm_server(model: str, engine_args: dict[str, Any], env: dict[str, str]) -> Iterator[str]:
    """vLLM's own OpenAI server on loopback."""
    port = free_port()
    options = []
    for name, value in engine_args.items():
        name = f"--{name.replace('_', '-')}"
        options += [name] if value is True else [name, json.dumps(value) if isinstance(value, dict) else str(value)]
    command = [vllm_python(None), "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--host", "127.0.0.1"]
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port), *options], env={**os.environ, **env}, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            while True:
                with contextlib.suppress(urllib.error.URLError, OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                    break
                if process.poll() is not None:
                    raise RuntimeError(Path(log.name).read_text(errors="replace")[-2000:])
                time.sleep(1)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def by_http(model: str, engine_args: dict[str, Any], gpus: int, requests: list[dict[str, Any]]) -> float:
    with vllm_server(model, engine_args, {} if gpus else CPU_ENV) as base_url:
        endpoint = {"base_url": base_url, "timeout_s": 3600, "total_timeout_s": 3600, "max_concurrency": AT_ONCE}
        role = {"endpoint": "eyes", "model": model}
        config = Config.model_validate({"models": {"endpoints": {"eyes": endpoint}, "roles": {"judge": role}}})
        return seconds_of(config, requests)


def plain_vllm() -> None:
    """`LLM.chat` over all conversations at once, in vLLM's own Python, which has no geofix.

    Prints the seconds of the second half of the requests; the first half warms it up.
    """
    import json
    import sys
    import time
    from pathlib import Path

    from vllm import LLM, SamplingParams

    engine = LLM(**json.loads(Path(sys.argv[1]).read_text()))
    requests = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
    params = SamplingParams(temperature=0, max_tokens=requests[0]["max_tokens"], ignore_eos=True)
    half = len(requests) // 2
    engine.chat([request["messages"] for request in requests[:half]], params, use_tqdm=False)
    began = time.perf_counter()
    replies = engine.chat([request["messages"] for request in requests[half:]], params, use_tqdm=False)
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "pictures": len(replies), "tokens": len(replies[0].outputs[0].token_ids)}))


def offline(model: str, engine_args: dict[str, Any], gpus: int, requests: list[dict[str, Any]]) -> float:
    with tempfile.TemporaryDirectory() as name:
        arguments, asked = Path(name) / "arguments.json", Path(name) / "requests.jsonl"
        arguments.write_text(json.dumps({"model": model, **engine_args}))
        asked.write_text("\n".join(json.dumps(request) for request in requests))
        program = Path(name) / "plain_vllm.py"  # a file: vLLM's engine process imports its parent's main module
        program.write_text(f'{inspect.getsource(plain_vllm)}\n\nif __name__ == "__main__":\n    plain_vllm()\n')
        found = subprocess.run(
            [vllm_python(None), "-P", str(program), str(arguments), str(asked)],
            env={**os.environ, **({} if gpus else CPU_ENV)}, capture_output=True, text=True,
        )  # fmt: skip
        if found.returncode:
            raise RuntimeError(found.stderr[-2000:])
        [told] = [json.loads(line) for line in found.stdout.splitlines() if line.startswith('{"seconds"')]
        assert told["tokens"] == requests[0]["max_tokens"]
        return float(told["seconds"])


def measure(shape: str | None, pictures: int, tokens: int, graphs: bool) -> list[Goal]:
    gpus = 0 if shape is None else 1
    engine_args: dict[str, Any] = {
        "max_model_len": 8192, "max_num_seqs": AT_ONCE, "gpu_memory_utilization": 0.8,
        "limit_mm_per_prompt": {"image": 1}, "generation_config": "vllm",
    }  # fmt: skip
    engine_args |= {} if graphs and gpus else {"enforce_eager": True}
    engine_args |= {"load_format": "dummy"} if gpus else {"dtype": "float32", "gpu_memory_utilization": 0.1}
    with tempfile.TemporaryDirectory(prefix="geofix-judge-") as name:
        checkpoint(Path(name), shape)
        requests = requests_of(2 * pictures, 112 if shape is None else 1400, tokens, name)
        rates: dict[str, float] = {}
        for way, take in (("offline", offline), ("by HTTP", by_http), ("through Ray", through_ray)):
            began = time.monotonic()
            rates[way] = pictures / take(name, engine_args, gpus, requests)
            print(
                f"   {way}: {rates[way]:.2f} pictures/s ({time.monotonic() - began:.0f} s with its start)", flush=True
            )
    return [
        Goal(f"{way}, times plain vLLM offline", rates[way] / rates["offline"], at_least=SHARE)
        for way in ("through Ray", "by HTTP")
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench judge_batch", description=__doc__)
    parser.add_argument("--model", choices=list(SHAPES), default="qwen2.5-vl-7b")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, on CPUs")
    parser.add_argument("--pictures", type=int, default=256, help="measured, after as many that warm up")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--graphs", action="store_true", help="with CUDA graphs: each of the three starts takes longer")
    given = parser.parse_args(arguments or [])
    if not given.tiny and no_gpu():
        return NOT_RUN
    return judge(measure(None if given.tiny else given.model, given.pictures, given.tokens, given.graphs))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
