"""A miniature that learns: a base that sees, answers at once, then zoom, read, geocode and answer, Pass@K and GRPO.

`python -m bench.miniature [--size tiny|gpu] [--base sees-2] [--seeds 0,1,2] [--minutes 25]`: base and pictures once,
then for each seed stages (SFT, cold start on few trajectories and on all), passk, grpo (learnable pictures), random
(any pictures), and what each model finds. A piece is a process of its own, several run side by side; each is kept
when it is done (folder `geofix-miniature` among the temporary files, or GEOFIX_MINIATURE) and left out the next time.
None is begun after `--minutes`, and GRPO ends its steps before. `--size tiny` runs on a CPU and shows that the pieces
work, not that anything is learned. docs/it-learns.md has the figures.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.miniature_report import report
from bench.miniature_size import SIZES, Size
from bench.qwen_gpu import NOT_RUN, no_gpu
from tasks.train import packaged


@dataclass(frozen=True)
class Piece:
    """A part of the work, which it needs done before, and what does it."""

    name: str
    after: tuple[str, ...]
    run: Callable[[], dict[str, Any]]


def main(arguments: Sequence[str] = ()) -> int:
    """Run the pieces that are not done yet; the exit code says whether the figures hold."""
    parser = argparse.ArgumentParser(prog="python -m bench.miniature", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="gpu")
    parser.add_argument("--base", choices=[packaged.NAME], help="the packaged base, in place of pretraining one")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--random", help="seeds of which GRPO on random pictures is tried too (default: all)")
    parser.add_argument("--minutes", type=float, default=25.0, help="after which no further piece is begun")
    for name, kind, said in (
        ("practice", int, "places asked for pictures to practise on"), ("held-out", int, "places to measure on"),
        ("grpo-rate", float, "of GRPO's steps"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, help=f"{said}, in place of the size's own")
    parser.add_argument("--product", action="store_true", help="by `geofix` commands: bench/miniature_product.py")
    parser.add_argument("--trained", type=Path, metavar="RESULTS", help="of the product: measure models trained before")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the product's settings")
    parser.add_argument("--processes", type=int, help="pieces side by side (default: 9 on a GPU, else 1)")
    options = parser.parse_args(list(arguments))
    if options.product:
        from bench.miniature_product import run as run_product

        return run_product(options.set, options.minutes, options.trained)
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asks without opening the GPU: pieces are forked
    if options.size != "tiny" and no_gpu():
        return NOT_RUN
    size, seeds = SIZES[options.size], [int(one) for one in options.seeds.split(",")]
    tried = {int(one) for one in (options.random or options.seeds).split(",")}
    arms = {"grpo": seeds, "random": [seed for seed in seeds if seed in tried]}
    asked = {name: getattr(options, name) for name in ("practice", "held_out", "grpo_rate")}
    size = replace(size, **{name: value for name, value in asked.items() if value is not None})
    root = Path(os.environ.get("GEOFIX_MINIATURE") or Path(tempfile.gettempdir()) / "geofix-miniature")
    folder = root / size.name
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * options.minutes
    done = work(
        folder, pieces(folder, size, arms, options.base, until), options.processes or (9 if size.base_s else 1), until
    )
    return report(folder, seeds) if done else 1


def pieces(folder: Path, size: Size, arms: dict[str, list[int]], named: str | None, until: float) -> list[Piece]:
    """Everything there is to do, in an order in which it can be done."""
    from bench import miniature_pieces as its

    ground, seeds = its.Ground(size, until), arms["grpo"]
    found = [
        Piece("base", (), partial(base, folder, size, named)),
        Piece("train", (), partial(its.train, folder, ground)),
        Piece("views", ("train",), partial(its.views, folder, ground)),
        Piece("practice", ("views",), partial(its.pictures, folder, ground, "practice")),
        Piece("held", ("practice",), partial(its.pictures, folder, ground, "held")),
        Piece("blank", ("held",), partial(its.pictures, folder, ground, "blank")),
    ]
    for before, field in zip(("blank", *ground.further), ground.further.values(), strict=False):
        found.append(Piece(field.name, (before,), partial(its.further, folder, field)))
    # Those that others wait for come first: they are begun first.
    found += [Piece(f"stages-{seed}", ("base", "views"), partial(its.stages, folder, ground, seed)) for seed in seeds]
    for seed in seeds:
        tried = tuple(f"passk-{seed}-{part}" for part in range(size.parts))
        found += [
            Piece(name, (f"stages-{seed}", "practice"), partial(its.passk, folder, ground, seed, part))
            for part, name in enumerate(tried)
        ]
        found += [
            Piece(f"{name}-train-{seed}", (*tried, "practice"), partial(its.grpo, folder, ground, seed, name))
            for name in arms
            if seed in arms[name]
        ]
    for name, measure in (("sft", its.sft), ("more", its.more)):
        found += [
            Piece(f"{name}-{seed}", (f"stages-{seed}", "held"), partial(measure, folder, ground, seed))
            for seed in seeds
        ]
    for arm, made, controls in (
        ("cold", "stages", "controls"),
        *((arm, f"{arm}-train", f"controls-{arm}") for arm in arms),
    ):
        for seed in arms.get(arm, seeds):
            model, after = f"{arm}-{seed}", f"{made}-{seed}"
            found.append(Piece(model, (after, "held"), partial(its.agent, folder, ground, model)))
            found += [
                Piece(
                    f"{model}-in-{field.name}", (after, field.name), partial(its.abroad, folder, ground, model, field)
                )
                for field in ground.further.values()
            ]
            if arm != "random":
                found.append(
                    Piece(f"{controls}-{seed}", (after, "blank"), partial(its.controls, folder, ground, seed, arm))
                )
    found.append(Piece("untrained", ("base", "held"), partial(its.untrained, folder, ground)))
    return found


def work(folder: Path, listed: Sequence[Piece], processes: int, until: float) -> bool:
    """Run what is not done, each in a forked process, as soon as what it needs is done; whether all of it is."""
    began = time.monotonic()
    context = multiprocessing.get_context("fork")  # a world and a geocoder are too large to be made for each piece
    waiting = [one for one in listed if not (folder / f"{one.name}.json").is_file()]
    running: dict[str, Any] = {}
    failed = False
    while waiting or running:
        for name, process in list(running.items()):
            if not process.is_alive():
                del running[name]
                failed = failed or process.exitcode != 0
                print(
                    f"[{time.monotonic() - began:5.0f}] {name}: {'done' if not process.exitcode else 'failed'}",
                    flush=True,
                )
        if failed or time.monotonic() > until:
            waiting = []
        ready = [one for one in waiting if all((folder / f"{name}.json").is_file() for name in one.after)]
        for one in ready[: processes - len(running)]:
            waiting.remove(one)
            running[one.name] = context.Process(target=_run, args=(folder, one))
            running[one.name].start()
        if not running:
            break
        time.sleep(0.2)
    return all((folder / f"{one.name}.json").is_file() for one in listed)


def _run(folder: Path, piece: Piece) -> None:
    began = time.monotonic()
    import torch

    torch.set_num_threads(1)
    found = {**piece.run(), "seconds": round(time.monotonic() - began, 1)}
    unfinished = folder / f"{piece.name}.partial"
    unfinished.write_text(json.dumps(found), encoding="utf-8")
    unfinished.rename(folder / f"{piece.name}.json")


def base(folder: Path, size: Size, named: str | None) -> dict[str, Any]:
    """The base in `folder/base`: the packaged one, or a newly pretrained one."""
    shutil.rmtree(folder / "base", ignore_errors=True)  # of a run that ended before its figures were written
    if named is None and size.base_s:
        from infra.pretrain.__main__ import main as pretrain

        if pretrain([str(folder / "base"), "--seconds", str(size.base_s)]):
            raise SystemExit(1)
        found: dict[str, Any] = json.loads((folder / "base" / "figures.json").read_text(encoding="utf-8"))
        wanted = ("signs", "signs_shuffled", "attributes", "attributes_shuffled", "boxes", "quotes")
        return {name: found[name] for name in wanted}
    from tasks.train.opening import base_folder

    shutil.copytree(base_folder(named or packaged.NAME), folder / "base")
    return {"packaged": named or packaged.NAME}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
