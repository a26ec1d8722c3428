"""Commands import what they use: a library that takes a second to load is not for a command that says a line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "ray", "prefect", "scipy", "pandas", "rasterio", "pyogrio", "great_expectations", "transformers")
# `import X` leaves X in sys.modules; polars looks for some without loading them, which leaves nothing of them there.
PROGRAM = """
import json, sys
sys.argv = ["geofix", *sys.argv[1:]]
from flows.cli import main
try:
    main()
except SystemExit as end:
    code = end.code
loaded = [name for name in {heavy!r} if any(module.startswith(name + ".") for module in sys.modules)]
print(json.dumps([code, loaded]), file=sys.stderr)
"""


def loaded(folder: Path, *words: str) -> set[str]:
    program = PROGRAM.replace("{heavy!r}", repr(HEAVY))
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    code, names = json.loads(done.stderr.splitlines()[-1])
    assert code in (0, None), done.stderr[-2000:]
    return set(names)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from flows.options import RunOptions
    from tasks.lake import Lake
    from tasks.plan import STAGES
    from tasks.runtime.runner import Context, run
    from tasks.services import connect

    folder = tmp_path_factory.mktemp("imports")
    [plan] = STAGES
    config = RunOptions(overrides=["plan.places=6"]).resolve()
    run(plan, config.plan, Context(Lake(folder / "lake"), connect(config.services, {})))
    (folder / "answers.csv").write_text("id,lat,lon,true_lat,true_lon\na,1,2,1,2\nb,1,2,1,3\n")
    return folder


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["--help"], set()),
        (["tables"], set()),
        (["show", "places"], set()),
        (["score", "answers.csv"], {"scipy"}),  # intervals
        pytest.param(["plan", "--dry-run", "--set", "plan.places=6"], {"scipy"}, marks=pytest.mark.whole),  # distances
        (["plan", "--set", "plan.places=6"], set()),  # nothing to do
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_imports_what_it_uses(lake: Path, words: list[str], allowed: set[str]) -> None:
    assert loaded(lake, *words) <= allowed
