"""One word changed in any prompt of the package: just the steps that show it to a model have their items to do again.

Each prompt is changed in its source, in a process of its own, so that every place that imports it sees the change.
"""

import ast
import importlib.abc
import importlib.machinery
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = ("spotagent", "geovista", "geoagent", "thinking-with-map", "smilegeo", "reverse")
# Everything that asks: evaluations of all kinds, readers, verifiers and personas that a recipe leaves out by default.
OVERRIDES = (
    "evaluate.verifier=verifier", "evaluate.grounding.reader=observer", "difficulty.reward.verifier=verifier",
    "train.grpo.reward.verifier=verifier",
)  # fmt: skip
ANSWERS = ("evaluate.answers", "evaluate.masking", "evaluate.scaling", "evaluate.swarm")
TRAINED = ("spotagent", "geovista", "geoagent", "thinking-with-map", "reverse")
FOR_ALL = ("evaluate.swarm", "evaluate.masking", "evaluate.scaling")


def shown(recipes: Sequence[str], *steps: str) -> set[str]:
    return {f"{recipe} {step}" for recipe in recipes for step in steps}


SPOT = ("spotagent",)
# Tiers are asked with the words of `curate.tiers.agent_recipe`, SpotAgent's where a recipe names no other.
TIERS = shown([recipe for recipe in RECIPES if recipe != "thinking-with-map"], "curate.tiers")
DIRECT = shown(SPOT, "difficulty.attempts", "train.grpo", *ANSWERS)
VISTA = shown(("geovista",), "synthesize", "train.grpo", *ANSWERS)
LEVELS = shown(("geoagent",), "synthesize", "train.grpo", *ANSWERS)
WAY = shown(("reverse",), "synthesize", "train.grpo", *ANSWERS)
MAP = shown(("thinking-with-map",), "train.grpo", *ANSWERS)
ROUNDS = shown(RECIPES, "evaluate.swarm") | {"smilegeo train.swarm_rounds"}
TOOLS = shown(TRAINED, "train.cold_start", "train.grpo")
SHOWN: dict[str, set[str]] = {
    **{
        f"tasks/curate/verdict.py {name}": shown(RECIPES, "curate.judge")
        for name in ("SYSTEM", "QUESTION", "SATELLITE")
    },
    "tasks/agent/prompt.py ANSWER": DIRECT | TIERS | shown(SPOT, "synthesize"),
    "tasks/agent/prompt.py QUESTION": DIRECT | TIERS | shown(SPOT, "synthesize") | WAY,
    "tasks/agent/prompt.py SYSTEM": DIRECT,
    "tasks/agent/readings.py READ": shown(RECIPES, "evaluate.grounding")
    | shown(("spotagent", "geovista", "geoagent", "reverse"), "synthesize"),
    **{f"tasks/agent/render.py {name}": TOOLS for name in ("TOOLS_HEAD", "TOOLS_TAIL")},
    **{f"tasks/recipes/geoagent/form.py {name}": LEVELS for name in ("QUESTION", "FORM", "EXPERT")},
    "tasks/recipes/geoagent/form.py DIRECT": LEVELS - {"geoagent synthesize"},
    **{f"tasks/recipes/geoagent/form.py {name}": {"geoagent synthesize"} for name in ("SYSTEM", "NORMALISE")},
    **{f"tasks/recipes/geoagent/masking.py {name}": shown(RECIPES, "evaluate.masking") for name in ("NAMES", "ASK")},
    "tasks/recipes/geoagent/reward.py READER": {"geoagent train.grpo"},
    **{f"tasks/recipes/geovista/__init__.py {name}": {"geovista synthesize"} for name in ("BOXES", "QUERIES")},
    **{f"tasks/recipes/geovista/form.py {name}": VISTA for name in ("ANSWER", "RULE", "SYSTEM")},
    **{f"tasks/recipes/reverse/form.py {name}": WAY for name in ("ANSWER", "SYSTEM")},
    **{
        f"tasks/recipes/smilegeo/baselines.py {name}": shown(RECIPES, "evaluate.swarm")
        for name in ("HINT", "REFLECT", "AGAIN", "PAIR", "FUSE")
    },
    "tasks/recipes/smilegeo/form.py ANSWER": ROUNDS | shown(("smilegeo",), *ANSWERS),
    "tasks/recipes/smilegeo/form.py SYSTEM": shown(("smilegeo",), *ANSWERS),
    **{f"tasks/recipes/smilegeo/form.py {name}": ROUNDS for name in ("SEARCH", "PAGES", "REVIEW", "SUMMARISE")},
    "tasks/recipes/smilegeo/form.py DISCUSS": shown(RECIPES, "evaluate.swarm"),
    **{
        f"tasks/recipes/spotagent/__init__.py {name}": {"spotagent synthesize"}
        for name in ("OBSERVER", "OBSERVE_REGION", "PLANNER_EYES")
    },
    # The template of all its phases under `quality: paper`; these identities are of `ours`, with the shorter words.
    "tasks/recipes/spotagent/__init__.py SYSTEM": TIERS | {"spotagent synthesize"},
    **{
        f"tasks/recipes/thinking_with_map/__init__.py {name}": MAP | {"thinking-with-map curate.tiers"}
        for name in ("QUESTION", "TASK", "ANSWER")
    },
    "tasks/recipes/thinking_with_map/__init__.py GUIDANCE": MAP,
    **{
        f"tasks/recipes/thinking_with_map/scaling.py {name}": shown(RECIPES, "evaluate.scaling")
        for name in ("INSTRUCTION", "LEFT_OUT")
    },
    "tasks/reward/services.py VERIFIER": shown(RECIPES, *ANSWERS) | {"geovista train.grpo", "reverse train.grpo"},
}
# Prompts that no step of these recipes shows under these settings, and texts that are no prompts.
NOT_SHOWN = {
    *(
        "tasks/recipes/geoagent/form.py _AGREES",
        "tasks/recipes/geovista/form.py DIRECT",
        "tasks/recipes/reverse/form.py DIRECT",
        "tasks/recipes/smilegeo/form.py RULE",
    ),
    *("tasks/recipes/smilegeo/form.py TOOLS", "tasks/recipes/spotmini/__init__.py BRIEFLY"),
    *("tasks/agent/model_probe.py _QUESTIONS", "tasks/agent/claims.py _LEFT_COUNTRIES", "tasks/agent/page.py _STYLE"),
    *("tasks/agent/recording.py _ANSWERS", "tasks/agent/recording.py _FACTS", "tasks/agent/toolbox.py NOT_RECORDED"),
}


class OneWord(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module with one string constant changed."""

    def __init__(self, file: Path, name: str) -> None:
        self.module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        self.file, self.name = file, name

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self.module:
            return None
        is_package = self.file.name == "__init__.py"
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=str(self.file), is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [str(self.file.parent)]
        return spec

    def exec_module(self, module: Any) -> None:
        tree = ast.parse(self.file.read_text())
        changed = 0
        for node in tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == self.name:
                words = next(part for part in ast.walk(node.value) if is_prompt(part))
                words.value, changed = words.value.replace(" the ", " this very ", 1) + " Mind that.", changed + 1  # type: ignore[attr-defined]
        assert changed == 1, f"{self.name} in {self.file}"
        exec(compile(tree, str(self.file), "exec"), module.__dict__)


def is_prompt(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 6


def prompts() -> list[tuple[Path, str]]:
    """Every constant of a module that talks to a model: those of recipes and agents, and of the steps that ask."""
    places = [*(ROOT / "tasks/recipes").rglob("*.py"), *(ROOT / "tasks/agent").glob("*.py")]
    places += [ROOT / "tasks/curate/verdict.py", ROOT / "tasks/reward/services.py"]
    found = []
    for file in sorted(places):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                is_text = isinstance(node.value, ast.Constant | ast.JoinedStr | ast.Dict | ast.BinOp)
                if is_text and any(is_prompt(part) for part in ast.walk(node.value)):
                    found.append((file, name))
    return found


def identities() -> dict[str, str]:
    """For each recipe and step what its items' digests begin with."""
    from flows.order import STAGES, segments
    from schemas.load import load_config
    from tasks.recipes.recipe import RECIPES as ALL
    from tasks.runtime.runner import Stage, digest
    from tasks.synthesize.trajectories import words_digest

    found = {}
    for recipe in RECIPES:
        config = load_config(recipe=recipe, profile="offline", overrides=OVERRIDES)
        for stage, steps in segments(config, STAGES):
            for step in steps:
                if not isinstance(step, Stage) or step.roles is None:
                    continue
                settings: Any = config
                for part in (step.section or stage).split("."):
                    settings = getattr(settings, part)
                identity = step.identity(settings) if step.identity else settings.identity()
                own = words_digest(ALL[recipe], settings) if step.name == "synthesize" else None
                found[f"{recipe} {step.name}"] = digest(identity, step.words(settings) if step.words else None, own)
    return found


def in_child(change: tuple[Path, str] | None) -> dict[str, str]:
    """The identities in a process that has loaded nothing of ours yet."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if change:
                sys.meta_path.insert(0, OneWord(*change))
            for name in [name for name in sys.modules if name.split(".")[0] in ("tasks", "flows", "schemas")]:
                del sys.modules[name]
            os.write(writing, json.dumps(identities()).encode())
        except Exception:  # noqa: BLE001 - told here, where it would be lost
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    found: dict[str, str] = json.loads(text)
    return found


def test_every_prompt_of_the_package_is_listed() -> None:
    known = {f"{file.relative_to(ROOT)} {name}" for file, name in prompts()}
    assert known == {*SHOWN, *NOT_SHOWN}


@pytest.mark.slow
def test_one_word_redoes_just_the_steps_that_show_it() -> None:
    before = in_child(None)
    wrong = {}
    for prompt, expected in SHOWN.items():
        file, name = prompt.split()
        after = in_child((ROOT / file, name))
        redone = {step for step in before if before[step] != after[step]}
        if redone != expected:
            wrong[prompt] = sorted(redone ^ expected)
    assert wrong == {}
