"""Run every benchmark, or those named: `python -m bench [NAME …]`; one name may have options: `NAME --help`."""

import importlib
import runpy
import sys
import time

# A benchmark is a module with a `main()` that prints its figures, and returns 1 if they do not hold.
BENCHMARKS = [
    "overhead",
    "pool",
    "plan_roads",
    "geocoder",
    "collect_latency",
    "live_trajectories",
    "panorama",
    "mosaic",
    "scene_search",
    "labels_million",
    "leakage_join",
]
# Run only when named: they take long; those that need a GPU end with exit code 77 where there is none.
ON_REQUEST = [
    "canary",
    "scale_simulation",
    "scale_table",
    "ensembles",
    "felt",
    "radius_coverage",
    "paid_calls",
    "torture",
    "train_kills",
    "train_workers",
    "tool_rollouts",
    "verl",
    "train_gpu",
    "cards",
    "rollouts_gpu",
    "grpo_vllm",
    "grpo_async",
    "judge_batch",
    "locate_plates",
    "miniature",
    "frozen_tools",
    "offline_models",
]


def run(names: list[str]) -> int:
    unknown = [name for name in names if name not in (*BENCHMARKS, *ON_REQUEST)]
    if unknown:
        print(f"no benchmark '{unknown[0]}'; there are {', '.join((*BENCHMARKS, *ON_REQUEST))}", file=sys.stderr)
        return 2
    broken = 0
    for name in names or BENCHMARKS:
        module = importlib.import_module(f"bench.{name}")
        print(f"== {name}: {(module.__doc__ or '').splitlines()[0]}", flush=True)
        sys.argv = [name]  # one that reads options of its own would take the benchmarks' names for them
        start = time.monotonic()
        broken |= module.main()
        print(f"   ({time.monotonic() - start:.0f} s in all)\n", flush=True)
    return broken


if __name__ == "__main__":
    if sys.argv[2:] and sys.argv[1] in (*BENCHMARKS, *ON_REQUEST) and sys.argv[2].startswith("-"):
        del sys.argv[0]
        runpy.run_module(f"bench.{sys.argv[0]}", run_name="__main__", alter_sys=True)
    else:
        raise SystemExit(run(sys.argv[1:]))
