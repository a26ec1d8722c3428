"""Rollouts by vLLM: what the trainer sends it, the weights it gets, and what becomes of a process that fails.

With a stand-in for vLLM that speaks its interface, and with vLLM itself on CPUs (`make test-vllm`).
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from schemas.errors import GeofixError
from schemas.settings.train import RolloutVllmSettings, TinySettings
from tasks.train.encoding import Encoder
from tasks.train.fast.families import fast_model
from tasks.train.fast.grouped import pack_groups
from tasks.train.fast.model import FastModel
from tasks.train.rollouts import vllm_program
from tasks.train.rollouts.engine import Rollout
from tasks.train.rollouts.engines import Engines
from tasks.train.rollouts.sampling import Sampling
from tasks.train.rollouts.vllm_engines import VllmEngines
from tasks.train.tiny import build_model, build_processor
from tasks.train.token_samples import Completion, Group, Sample

TINY = TinySettings(vocabulary=400, hidden=128, layers=2, intermediate=96, vision_hidden=64, vision_layers=2)
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def parts() -> tuple[FastModel, Encoder]:
    processor = build_processor(["Where was this picture taken? Latitude: 1.5"], TINY, 28 * 28 * 4, 28 * 28 * 24)
    torch.set_num_threads(1)
    model = build_model(processor, TINY, 0).eval()
    return fast_model(model), Encoder(processor, None)  # type: ignore[arg-type]  # pictures are given opened


def picture(number: int, width: int = 140, height: int = 84) -> Image.Image:
    noise = np.random.default_rng(number).integers(0, 256, (height // 14, width // 14, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height))


def prompts(encoder: Encoder, count: int) -> list[Sample]:
    """Every second one with pictures."""
    found = []
    for number in range(count):
        shown = [picture(number), picture(number + 1, 56, 112)][: number % 2 * (1 + number % 4 // 3)]
        content = [*({"type": "image"} for _ in shown), {"type": "text", "text": f"Where was picture {number}?"}]
        found.append(encoder.prompt([{"role": "user", "content": content}], pictures=shown))
    return found


def trainer_log_probs(fast: FastModel, encoder: Encoder, prompt: Sample, rollout: Rollout) -> torch.Tensor:
    group = Group(prompt, (Completion(rollout.ids, [True] * len(rollout.ids)),))
    with torch.no_grad():
        return fast.log_probs(pack_groups([group], encoder.image_token, encoder.merge), 1.0)[0]


def largest_gap(
    fast: FastModel, encoder: Encoder, asked: Sequence[Sample], found: Sequence[Sequence[Rollout]]
) -> float:
    return max(
        float((trainer_log_probs(fast, encoder, prompt, one) - torch.tensor(one.log_probs)).abs().max())
        for prompt, group in zip(asked, found, strict=True)
        for one in group
    )


def test_a_samples_pictures_and_marks_come_back(parts: tuple[FastModel, Encoder]) -> None:
    _, encoder = parts
    shown = [picture(1), picture(2, 56, 112)]
    content = [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}]
    sample = encoder.prompt([{"role": "user", "content": content}], pictures=shown)
    for found, given in zip(encoder.pictures(sample), shown, strict=True):
        assert (found == np.asarray(given)).all()
    marked = encoder.marked(sample)
    assert marked.count(encoder.image_token) == 2
    assert len(marked) == len(sample.ids) - sum(h * w // 4 - 1 for _, h, w in sample.grids)
    assert (
        encoder.marked(encoder.prompt([{"role": "user", "content": "words"}]))
        == encoder.prompt([{"role": "user", "content": "words"}]).ids
    )


@pytest.mark.vllm
def test_vllm_writes_what_the_embedded_engine_writes_before_and_after_a_step(
    parts: tuple[FastModel, Encoder],
) -> None:
    fast, encoder = parts
    asked = prompts(encoder, 8)
    settings = RolloutVllmSettings(engine_args={"max_model_len": 512, "max_num_seqs": 16})
    vllm = VllmEngines(fast, encoder, encoder.end_tokens, settings)
    embedded = Engines(fast, encoder.end_tokens, 16)
    try:
        vllm.refresh_weights()
        greedy = Sampling(0.0)
        ours, theirs = (one.generate(asked, 1, NEW_TOKENS, greedy) for one in (embedded, vllm))
        assert [one.ids for [one] in theirs] == [one.ids for [one] in ours]
        assert largest_gap(fast, encoder, asked, theirs) < 1e-3
        drawn = vllm.generate(asked, 4, NEW_TOKENS, Sampling(1.0))
        assert all(len({tuple(one.ids) for one in group}) > 1 for group in drawn), "a group's rollouts differ"
        assert largest_gap(fast, encoder, asked, drawn) < 1e-3

        with torch.no_grad():  # a step of training
            for parameter in fast.model.parameters():
                parameter += 0.02 * torch.randn_like(parameter)
        assert largest_gap(fast, encoder, asked, vllm.generate(asked, 1, NEW_TOKENS, greedy)) > 0.05
        vllm.refresh_weights()
        after = vllm.generate(asked, 1, NEW_TOKENS, greedy)
        assert largest_gap(fast, encoder, asked, after) < 1e-3
        assert [one.ids for [one] in after] == [one.ids for [one] in embedded.generate(asked, 1, NEW_TOKENS, greedy)]
    finally:
        vllm.close()


STAND_IN = '''
import json, os
from pathlib import Path
from types import SimpleNamespace

__version__ = "stand-in"
AsyncEngineArgs = SimpleNamespace


def SamplingParams(**given):
    return SimpleNamespace(**given)


class AsyncLLMEngine:
    """Writes what it was given: how many pictures, their first value, the mark of the weights, then the end."""

    def __init__(self, arguments):
        self.arguments, self.mark, self.calls = arguments, 0, []

    @classmethod
    def from_engine_args(cls, arguments):
        if getattr(arguments, "fail_at_start", False):
            raise ValueError("max_model_len is too large")
        return cls(arguments)

    async def generate(self, prompt, params, request_id):
        pictures = prompt.get("multi_modal_data", {}).get("image", [])
        if params.max_tokens == 1:
            os._exit(3)
        if params.max_tokens == 2:
            raise ValueError("the prompt is too long")
        tokens = len(prompt["prompt_token_ids"]) + sum(one.width * one.height // 784 - 1 for one in pictures)
        ids = [len(pictures), *(one.getpixel((0, 0))[0] for one in pictures), self.mark, params.stop_token_ids[0]]
        out = SimpleNamespace(token_ids=ids, logprobs=[{token: SimpleNamespace(logprob=-1.0)} for token in ids])
        yield SimpleNamespace(prompt_token_ids=[0] * tokens, outputs=[out] * params.n)

    async def collective_rpc(self, method, kwargs):
        from safetensors import safe_open

        with safe_open(str(Path(kwargs["weights_path"]) / "model.safetensors"), "pt") as file:
            names = set(file.keys())
            self.mark = round(float(file.get_tensor("model.language_model.norm.weight")[0]))
        assert method == "reload_weights" and "lm_head.weight" in names, "also where it is tied to the embeddings"

    async def reset_prefix_cache(self):
        self.calls.append("prefix")

    async def reset_encoder_cache(self):
        assert self.calls[-1] == "prefix"
'''


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[..., RolloutVllmSettings]:
    """Settings with a Python in which `vllm` is the stand-in."""
    package = tmp_path / "site" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    (package / "sampling_params.py").write_text("class RequestOutputKind:\n    FINAL_ONLY = 1\n")

    def settings(**changes: Any) -> RolloutVllmSettings:
        return RolloutVllmSettings(python=sys.executable, env={"PYTHONPATH": str(package.parent)}, **changes)

    return settings


def test_prompts_pictures_and_weights_reach_vllm(
    parts: tuple[FastModel, Encoder], stand_in: Callable[..., RolloutVllmSettings]
) -> None:
    fast, encoder = parts
    asked = prompts(encoder, 4)
    vllm = VllmEngines(fast, encoder, encoder.end_tokens, stand_in())
    norm = fast.model.get_parameter("model.language_model.norm.weight")
    [end] = encoder.end_tokens
    kept = norm.detach().clone()
    try:
        for mark in (3, 5):
            with torch.no_grad():
                norm.fill_(mark)
            vllm.refresh_weights()
            for _ in range(2):  # the second time the pictures are there already
                found = vllm.generate(asked, 2, 8, Sampling(1.0))
                shown = [[int(one[0, 0, 0]) for one in encoder.pictures(prompt)] for prompt in asked]
                assert [[one.ids for one in group] for group in found] == [
                    [[len(values), *values, mark, end]] * 2 for values in shown
                ]
                assert all(one.is_finished and one.log_probs[0] == -1.0 for group in found for one in group)
        waiting = iter([asked[0], None, asked[1], asked[2], None, None])
        served = list(vllm.serve(lambda most, waits: next(waiting, None), 100, 3, 8, Sampling(1.0)))
        assert sorted(number for number, _ in served) == [0, 1, 2], "prompts that come while others are written"
        with pytest.raises(GeofixError, match="vLLM failed: ValueError: the prompt is too long"):
            vllm.generate(asked, 1, 2, Sampling(1.0))
    finally:
        vllm.close()
        with torch.no_grad():
            norm.copy_(kept)


def test_vllm_ends_with_its_trainer_however_that_ends(
    tmp_path: Path, stand_in: Callable[..., RolloutVllmSettings]
) -> None:
    """A killed trainer's sockets are closed by the system; nothing else is said."""
    with Listener(str(tmp_path / "socket"), family="AF_UNIX", authkey=b"key") as listener:
        program = subprocess.Popen(
            [sys.executable, "-P", vllm_program.__file__, str(listener.address)],
            stdin=subprocess.PIPE, start_new_session=True, env={**os.environ, **stand_in().env},
        )  # fmt: skip
        assert program.stdin is not None
        program.stdin.write(b"key".hex().encode() + b"\n")
        program.stdin.close()
        with listener.accept() as connection:
            connection.send({"model": "any", "shares_memory": False})
            assert connection.recv() == (0, "stand-in")
    assert program.wait(20) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("engine_args", "new_tokens", "said"),
    [({"fail_at_start": True}, 8, "its log says: ValueError: max_model_len is too large"), ({}, 1, "process ended")],
)
def test_a_vllm_that_ends_is_one_line_and_no_waiting(
    engine_args: dict[str, Any], new_tokens: int, said: str, parts: tuple[FastModel, Encoder],
    stand_in: Callable[..., RolloutVllmSettings],
) -> None:  # fmt: skip
    fast, encoder = parts
    vllm = VllmEngines(fast, encoder, encoder.end_tokens, stand_in(engine_args=engine_args))
    with pytest.raises(GeofixError, match=said) as error:
        vllm.generate(prompts(encoder, 2), 1, new_tokens, Sampling(1.0))
    assert "\n" not in str(error.value)
    vllm.close()


def test_a_missing_python_is_named(parts: tuple[FastModel, Encoder]) -> None:
    fast, encoder = parts
    vllm = VllmEngines(fast, encoder, encoder.end_tokens, RolloutVllmSettings(python="/nowhere/python"))
    with pytest.raises(GeofixError, match=r"no Python with vLLM at /nowhere/python: `make vllm`.*grpo\.vllm\.python"):
        vllm.refresh_weights()
