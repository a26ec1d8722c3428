"""`python -m infra.pretrain OUTPUT`: a base that can see, as a Qwen2.5-VL folder with its figures."""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Pretrain and save; the exit code says whether it could."""
    parser = argparse.ArgumentParser(prog="python -m infra.pretrain", description=__doc__)
    parser.add_argument("output", type=Path, help="folder to write; must not exist")
    parser.add_argument("--start", type=Path, help="folder with configuration and tokenizer (default: a new one)")
    parser.add_argument("--seconds", type=float, default=480.0, help="how long to train")
    parser.add_argument("--steps", type=int, help="stop after this many optimizer steps, for a trial")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--places", type=int, default=12_000, help="places whose signs are practised")
    parser.add_argument("--held-out", type=int, default=600, help="pictures to measure with")
    parser.add_argument("--batch", type=int, default=384)
    parser.add_argument("--processes", type=int, default=max(0, (os.cpu_count() or 1) - 1), help="that paint")
    options = parser.parse_args(arguments)
    if options.output.exists():
        print(f"{options.output} is there already; name a folder that is not, or remove it", file=sys.stderr)
        return 1
    if options.start is not None and not (options.start / "config.json").is_file():
        print(f"--start {options.start} is no model folder: it has no config.json", file=sys.stderr)
        return 1
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from infra.pretrain.training import Plan, run  # torch takes seconds to import; a wrong option is told at once

    boards, quotes = options.processes * 3 // 5, options.processes // 5
    with tempfile.TemporaryDirectory() as scratch:
        start = options.start
        if start is None:
            from infra.pretrain.base import new_base
            from infra.pretrain.pictures import all_texts

            start = new_base(Path(scratch) / "start", all_texts(), seed=options.seed)
        plan = Plan(
            seconds=options.seconds,
            steps=options.steps,
            seed=options.seed,
            places=options.places,
            held_out=options.held_out,
            batch=options.batch,
            view_batch=max(2, options.batch // 4),
            board_processes=boards,
            paint_processes=options.processes - boards - quotes,
            quote_processes=quotes,
            quote_batch=max(2, options.batch * 2 // 3),
        )
        partial = options.output.with_name(options.output.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        run(start, plan, Path(scratch), partial).save(start, partial)
        partial.rename(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
