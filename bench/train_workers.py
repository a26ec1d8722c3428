"""Two processes that train one model against one: gradients, weights and checkpoints, with FSDP2 and with copies.

A tiny Qwen2.5-VL in float32 on a CPU, over gloo. The batches hold a sample without a picture and a number of samples
that the processes cannot share evenly. GRPO's groups differ in length, one is dead and one met outages; with `few` a
step has one group, so that a process has none.

`python -m bench train_workers --rounding` compares losses and gradients of the packed path with plain transformers. A
deep, narrow model (windows, padded vision MLP, grouped heads, pictures of several grids, mrope positions) is trained on
eight samples until their loss is near 0.08, where `train_gpu` compares losses. Then the same weights are computed with
in float32 and in bf16, by plain transformers (each sample alone, and all of them padded into one batch) and by the
packed path (several packings). In float32 every pair must agree to 1e-5; in bf16 the distance of transformers to its
own float32 is the yardstick of rounding.
"""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.goals import Goal, judge
from schemas.settings.train import GrpoSettings, LoraSettings, TrainSettings, TunerSettings
from tasks.train.fast.families import fast_model
from tasks.train.fast.packing import pack
from tasks.train.fast.padding import pad_vision
from tasks.train.ranks import ALONE, Ranks
from tasks.train.token_samples import IGNORED, Sample

IMAGE, START, END, PAD, VOCABULARY = 5, 7, 8, 0, 512
GRIDS = [((1, 16, 12),), (), ((1, 4, 4), (1, 10, 6)), ((1, 18, 14),)]
WANTED_LOSS = 0.08
STEPS = 400


def deep_model(layers: int = 12) -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {
        "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": layers,
        "num_attention_heads": 8, "num_key_value_heads": 2, "initializer_range": 0.06, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]},
        "pad_token_id": PAD, "bos_token_id": PAD, "eos_token_id": 1, "tie_word_embeddings": False,
    }  # fmt: skip
    vision = {
        "depth": 8, "hidden_size": 64, "intermediate_size": 171, "num_heads": 4, "out_hidden_size": 128,
        "window_size": 112, "fullatt_block_indexes": [3, 7], "initializer_range": 0.06,
    }  # fmt: skip
    config = Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, image_token_id=IMAGE, video_token_id=6, vision_start_token_id=START,
        vision_end_token_id=END, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration(config)


def samples_of(count: int = 8) -> list[Sample]:
    """Text, pictures, text, an answer; the pixels are whole bf16 numbers, so both types read the same picture."""
    found = []
    for seed, grids in zip(range(count), itertools.cycle(GRIDS), strict=False):
        generator = torch.Generator().manual_seed(seed)

        def words(n: int, generator: torch.Generator = generator) -> list[int]:
            return torch.randint(10, VOCABULARY, (n,), generator=generator).tolist()

        ids = words(8 + seed)
        for _, rows, columns in grids:
            ids += [START, *[IMAGE] * (rows * columns // 4), END, *words(3)]
        answer = words(16 + 3 * seed)
        patches = sum(rows * columns for _, rows, columns in grids)
        pixels = torch.randn(patches, 1176, generator=generator).to(torch.bfloat16).float() if patches else None
        found.append(Sample([*ids, *answer], [IGNORED] * len(ids) + answer, pixels, grids))
    return found


def plain_inputs(samples: list[Sample], kind: torch.dtype) -> dict[str, torch.Tensor]:
    """Samples padded on the right into one batch, as transformers takes them."""
    longest = max(len(one.ids) for one in samples)

    def padded(values: Any, fill: int) -> list[int]:
        return [*values, *[fill] * (longest - len(values))]

    ids = torch.tensor([padded(one.ids, PAD) for one in samples])
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.tensor([padded([1] * len(one.ids), 0) for one in samples]),
        "labels": torch.tensor([padded(one.labels, IGNORED) for one in samples]),
        "mm_token_type_ids": (ids == IMAGE).int(),
    }
    pixels = [one.pixels for one in samples if one.pixels is not None]
    if pixels:
        inputs["pixel_values"] = torch.cat(pixels).to(kind)
        inputs["image_grid_thw"] = torch.tensor([grid for one in samples for grid in one.grids])
    return inputs


def trained_tokens(samples: list[Sample]) -> int:
    return sum(label != IGNORED for one in samples for label in one.labels[1:])


def plain_loss(model: Any, batches: list[list[Sample]]) -> torch.Tensor:
    """Mean over all trained tokens; the logits in float32 for the loss, as transformers has them."""
    kind = model.lm_head.weight.dtype
    total = torch.zeros(())
    for samples in batches:
        total = total + model(**plain_inputs(samples, kind), use_cache=False).loss.float() * trained_tokens(samples)
    return total / sum(trained_tokens(samples) for samples in batches)


def packed_loss(model: Any, batches: list[list[Sample]], wide: bool = False) -> torch.Tensor:
    fast = fast_model(model, wide=wide)
    divisor = sum(trained_tokens(samples) for samples in batches)
    total = torch.zeros(())
    for samples in batches:
        length = -(-sum(len(one.ids) for one in samples) // 64) * 64  # filled up, as on a GPU
        total = total + fast.loss(pack(samples, IMAGE, 2, length), divisor)
    return total


def gradient(model: Any, loss: torch.Tensor) -> torch.Tensor:
    """All gradients as one vector, those of the vision MLP's padding cut off."""
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    width = model.config.vision_config.intermediate_size
    parts = []
    for name, p in model.named_parameters():
        grad = torch.zeros_like(p) if p.grad is None else p.grad
        if "visual.blocks" in name and (".gate_proj." in name or ".up_proj." in name):
            grad = grad[:width]
        elif "visual.blocks" in name and name.endswith(".mlp.down_proj.weight"):
            grad = grad[:, :width]
        parts.append(grad.flatten().double())
    return torch.cat(parts)


def trained(samples: list[Sample]) -> Any:
    """Weights with which the samples' loss is near 0.08, as bf16 numbers in float32."""
    model = deep_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    fast = fast_model(model)
    batch = pack(samples, IMAGE, 2)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 20)
        loss = fast.loss(batch)
        if loss.item() < WANTED_LOSS:
            break
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    for p in model.parameters():
        p.data = p.data.to(torch.bfloat16).float()
    return model.eval()


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def measure_rounding() -> dict[str, float]:
    """Every figure by name."""
    torch.set_num_threads(1)
    samples = samples_of()
    model = trained(samples)
    narrow = copy.deepcopy(model).to(torch.bfloat16)
    packings = [[samples], [[one] for one in samples], [samples[::2], samples[1::2]], [samples[:3], samples[3:]]]
    alone, together = packings[1], packings[0]
    found: dict[str, float] = {}
    exact = plain_loss(model, alone)
    exact_gradient = gradient(model, exact)
    found["loss"] = exact.item()
    found["float32: transformers, padded batch against single samples"] = abs(
        plain_loss(model, together).item() / exact.item() - 1
    )
    fused = copy.deepcopy(model)
    pad_vision(fused)
    losses, gradients = [], []
    for batches in packings:
        loss = packed_loss(fused, batches)
        losses.append(abs(loss.item() / exact.item() - 1))
        gradients.append(relative(gradient(fused, loss), exact_gradient))
    found["float32: packed against transformers, loss"] = max(losses)
    found["float32: packed against transformers, gradient"] = max(gradients)

    plain = [plain_loss(narrow, batches) for batches in (alone, together)]
    found["bf16: transformers against its float32, loss"] = max(abs(one.item() / exact.item() - 1) for one in plain)
    found["bf16: transformers, padded batch against single samples, loss"] = abs(plain[1].item() / plain[0].item() - 1)
    found["bf16: transformers against its float32, gradient"] = relative(gradient(narrow, plain[0]), exact_gradient)
    fused = copy.deepcopy(narrow)
    pad_vision(fused)
    for name, wide in (("", False), (" with wide sums", True)):
        packed = [packed_loss(fused, batches, wide) for batches in packings]
        found[f"bf16: packed{name} against float32, loss"] = max(abs(one.item() / exact.item() - 1) for one in packed)
        found[f"bf16: packed{name} against transformers in bf16, loss"] = max(
            abs(one.item() / plain[0].item() - 1) for one in packed
        )
        found[f"bf16: packed{name} against float32, gradient"] = relative(gradient(fused, packed[0]), exact_gradient)
    return found


def rounding() -> int:
    found = measure_rounding()
    for name, value in found.items():
        print(f"   {name}: {value:.2e}", flush=True)
    return judge(
        [
            Goal("float32, loss", found["float32: packed against transformers, loss"], at_most=1e-5),
            Goal("float32, gradient", found["float32: packed against transformers, gradient"], at_most=1e-5),
        ]
    )


COUNT = 2
_fork = multiprocessing.get_context("forkserver")


def settings_of(kind: str) -> TrainSettings:
    tuner = TunerSettings(max_steps=4, batch_size=5, micro_batch=2, learning_rate=3e-3, weight_decay=0.1)
    grpo = GrpoSettings(
        max_steps=4, group_size=3, prompts_per_generation=2 if kind == "few" else 6,
        prompts_per_step=1 if kind == "few" else 3, micro_batch=3, learning_rate=1e-3, kl=0.05,
        max_completion_tokens=32,
    )  # fmt: skip
    lora = LoraSettings(rank=4, alpha=8) if kind == "adapters" else None
    return TrainSettings(
        sft=tuner, grpo=grpo, lora=lora, loader_threads=0, pack_tokens=96, save_steps=2, precision="fp32",
        gradient_checkpointing="all" if kind == "grpo" else "none",
    )  # fmt: skip


class Written:
    """Rollouts that are the same whatever process draws them: a function of the prompt."""

    def draw(self, prompts: Any, rows: Any) -> Any:
        from tasks.train.rollouts.source import Episode
        from tasks.train.token_samples import Completion

        found = []
        for row in rows:
            rng = np.random.default_rng(row["seed"])
            group = []
            for _ in range(3):
                ids = [int(n) for n in rng.integers(10, 90, rng.integers(1, 32))]
                group.append(Episode(Completion(ids, [True] * len(ids)), True, str(ids)))
            found.append(group)
        return found


def scorer(pairs: Any) -> Any:
    from tasks.train.rollouts.source import Judged

    def reward(ids: list[int], seed: int) -> float | None:
        if seed == 1:
            return 0.5  # a dead group
        return None if seed == 2 and sum(ids) % 2 else float(sum(ids) % 7)

    return [Judged(reward(episode.completion.ids, row["seed"])) for episode, row in pairs]


def train(kind: str, shard: str, folder: str, steps: int, out: str, ranks: Ranks = ALONE) -> None:
    """Train to `steps` from the last checkpoint in the folder; rank 0 writes gradients of the last step and weights."""
    from tasks.train.fast.parts import whole
    from tasks.train.grpo import Grpo, Reference
    from tasks.train.loop import Loop, prepare_model
    from tasks.train.ranks import shard as share_out
    from tasks.train.supervised import Supervised

    torch.set_num_threads(1)
    settings = settings_of(kind)
    model = small_model()
    fast = prepare_model(model, settings)
    samples = samples_of(7)
    is_shared = ranks.count > 1 and shard == "full"
    if kind in ("grpo", "few"):
        reference = Reference(fast, False, False)
        if is_shared:
            share_out(reference.fast, ranks)
        rows = [{"seed": n, "phase": None} for n in range(7)]
        program: Any = Grpo(fast, samples.__getitem__, rows, settings, Written(), scorer, reference, ranks)
    else:
        program = Supervised(fast, samples.__getitem__, len(samples), settings, settings.sft, ranks)
    program.steps = steps
    if is_shared:
        share_out(fast, ranks)
    loop = Loop(model, program, settings, Path(folder), 0.1, ranks=ranks)
    seen: dict[str, torch.Tensor] = {}
    add_up = Ranks.add_up

    def watch(self: Ranks, parameters: Any) -> None:
        add_up(self, parameters)
        seen.update({name: whole(p.grad).clone() for name, p in model.named_parameters() if p.grad is not None})

    Ranks.add_up = watch  # type: ignore[method-assign]
    try:
        progress = loop.run()
    finally:
        Ranks.add_up = add_up  # type: ignore[method-assign]
    weights = {name: whole(p.detach()).clone() for name, p in model.named_parameters()}
    figures = [{k: v for k, v in one.items() if k not in ("seconds", "tokens_per_s")} for one in progress.history]
    if ranks.is_first:
        torch.save({"gradients": seen, "weights": weights, "figures": figures}, out)
    ranks.wait()


def small_model() -> Any:

    model = deep_model(layers=2)
    model.model.visual.blocks = model.model.visual.blocks[:4]
    model.config.vision_config.depth = 4
    return model


def worker(rank: int, port: int, arguments: tuple[Any, ...]) -> None:
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=COUNT)
    try:
        train(*arguments, ranks=Ranks.joined())
    finally:
        dist.destroy_process_group()


def together(*arguments: Any) -> dict[str, Any]:
    """What two processes come to."""
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    processes = [_fork.Process(target=worker, args=(rank, port, arguments)) for rank in range(COUNT)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
        if process.exitcode != 0:
            raise SystemExit(f"a process ended with exit code {process.exitcode}")
    return dict(torch.load(arguments[-1], weights_only=True))


def alone(*arguments: Any) -> dict[str, Any]:
    process = _fork.Process(target=train, args=arguments)
    process.start()
    process.join(600)
    if process.exitcode != 0:
        raise SystemExit(f"the process ended with exit code {process.exitcode}")
    return dict(torch.load(arguments[-1], weights_only=True))


def apart(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest difference, relative to the largest number of its tensor where that is above 1."""
    assert a.keys() == b.keys()
    return max(float((a[n] - b[n]).abs().max() / max(1.0, float(b[n].abs().max()))) for n in a)


def measure(
    kinds: tuple[str, ...] = ("sft", "grpo", "few", "adapters"), shards: tuple[str, ...] = ("full", "none")
) -> list[Goal]:
    _fork.set_forkserver_preload(["bench.train_workers", "tasks.train.training", "tasks.train.grpo"])
    goals = []
    with tempfile.TemporaryDirectory(prefix="geofix-workers-") as name:
        root = Path(name)
        for kind in kinds:
            first = alone(kind, "none", str(root / f"{kind}-1a"), 1, str(root / "a.pt"))
            end = alone(kind, "none", str(root / f"{kind}-1b"), 4, str(root / "a.pt"))
            for shard in shards:
                label = f"{kind}, shard {shard}"
                two = together(kind, shard, str(root / f"{kind}-{shard}-a"), 1, str(root / "b.pt"))
                goals.append(
                    Goal(f"{label}: gradients of step 1", apart(two["gradients"], first["gradients"]), at_most=1e-6)
                )
                folder = str(root / f"{kind}-{shard}-b")
                two = together(kind, shard, folder, 4, str(root / "b.pt"))
                goals.append(
                    Goal(f"{label}: weights after 4 steps", apart(two["weights"], end["weights"]), at_most=1e-4)
                )
                for entry, other in zip(two["figures"], end["figures"], strict=True):
                    assert entry.keys() == other.keys()
                    tokens = [one["trained_tokens"] for one in (entry, other) if "trained_tokens" in one]
                    assert len(set(tokens)) <= 1, "every sample once"
                # Whole checkpoints: what two processes saved, one goes on from, and the other way round.
                for path in Path(folder).glob("checkpoint-4"):
                    path.rename(Path(name) / f"{kind}-{shard}-set-aside")
                one = alone(kind, shard, folder, 4, str(root / "b.pt"))
                goals.append(
                    Goal(f"{label}: two saved, one resumed", apart(one["weights"], two["weights"]), at_most=1e-4)
                )
            back = str(root / f"{kind}-1b")
            for path in Path(back).glob("checkpoint-4"):
                path.rename(Path(name) / f"{kind}-set-aside")
            two = together(kind, "full", back, 4, str(root / "b.pt"))
            goals.append(Goal(f"{kind}: one saved, two resumed", apart(two["weights"], end["weights"]), at_most=1e-4))
    return goals


def main(arguments: list[str] | None = None) -> int:
    if "--rounding" in (arguments or []):
        return rounding()
    goals = measure()
    for goal in goals:
        print(f"   {goal.what}: {goal.found:.1e}", flush=True)
    return judge(goals)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
