"""Two processes that train one model against one: gradients, weights and checkpoints, with FSDP2 and with copies.

A tiny Qwen2.5-VL in float32 on a CPU, over gloo. The batches hold a sample without a picture and a number of samples
that the processes cannot share evenly. GRPO's groups differ in length, one is dead and one met outages; with `few` a
step has one group, so that a process has none.
"""

from __future__ import annotations

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
from tasks.train.ranks import ALONE, Ranks

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
        from tasks.train.fast.grouped import Completion
        from tasks.train.rollouts.source import Episode

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
    from bench.train_rounding import samples_of
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
    from bench.train_rounding import deep_model

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
    _fork.set_forkserver_preload(["bench.train_rounding", "tasks.train.training", "tasks.train.grpo"])
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
    goals = measure()
    for goal in goals:
        print(f"   {goal.what}: {goal.found:.1e}", flush=True)
    return judge(goals)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
