"""Imports run one way: flows -> parts -> ground -> schemas, and the offline world is another program."""

import ast
from pathlib import Path

import pytest

from flows.order import PARTS

ROOT = Path(__file__).resolve().parent.parent


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def offenders(folder: str, forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files(folder)
        for name in imports(path)
        if name.split(".")[0] in forbidden or any(name == f or name.startswith(f + ".") for f in forbidden)
    ]


def test_there_is_code_to_look_at() -> None:
    assert all(len(files(folder)) > 3 for folder in ("flows", "tasks", "schemas", "infra"))


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("schemas", ("flows", "tasks", "infra", "prefect", "ray")),
        ("tasks", ("flows", "infra", "prefect")),
        ("infra/offline", ("flows", "tasks", "prefect", "ray")),
        ("infra/serve", ("flows", "prefect", "ray")),
    ],
)
def test_a_floor_reaches_only_down(folder: str, forbidden: tuple[str, ...]) -> None:
    assert offenders(folder, forbidden) == []


BESIDE = ("ingest",)  # parts that run by a command of their own, outside the order


@pytest.mark.parametrize("part", [*PARTS, *BESIDE])
def test_no_part_imports_another(part: str) -> None:
    others = tuple(f"tasks.{other}" for other in (*PARTS, *BESIDE) if other != part)
    assert offenders(f"tasks/{part}", others) == []


@pytest.mark.parametrize("ground", ["agent", "reward", "services"])
def test_the_ground_imports_no_part(ground: str) -> None:
    assert offenders(f"tasks/{ground}", tuple(f"tasks.{part}" for part in (*PARTS, *BESIDE))) == []
    for path in (ROOT / "tasks").glob("*.py"):
        assert not [
            name for name in imports(path) for part in (*PARTS, *BESIDE) if f"{name}.".startswith(f"tasks.{part}.")
        ]
