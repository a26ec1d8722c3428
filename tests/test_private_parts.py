"""No private part of another project: neither an attribute, a module nor an argument with a leading underscore."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("flows", "tasks", "schemas", "infra/pretrain", "infra/serve")
# The packed training loop calls operators of torch that have no public name.
EXEMPT = ("tasks/train/fast/",)
# Public in spite of their underscore: documented by Python itself.
GDAL = "rasterio._err"  # the errors of GDAL have no public name
DOCUMENTED = {"_exit", "_replace", "_asdict", "_fields", "_make"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def own_names(path: Path) -> set[str]:
    """Private names that a file of ours defines."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def field_names(path: Path) -> set[str]:
    """Private fields of our dataclasses, which other files of ours may name."""
    classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    fields = [node.target for one in classes for node in one.body if isinstance(node, ast.AnnAssign)]
    return {node.id for node in fields if isinstance(node, ast.Name) and is_private(node.id)}


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_uses(source: str, own: set[str]) -> Iterator[str]:
    """What a file uses of others' private parts, each with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not _is_own(node, own):
            yield f"{node.lineno}: .{node.attr}"
        elif isinstance(node, ast.Import):
            yield from (f"{node.lineno}: {one.name}" for one in node.names if _has_private(one.name))
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(one.name for one in node.names if one.name not in own)]
            yield from (f"{node.lineno}: {name}" for name in names if _has_private(name))
        elif isinstance(node, ast.Call):
            names = [one.arg for one in node.keywords if one.arg and is_private(one.arg) and one.arg not in own]
            yield from (f"{node.lineno}: {name}=" for name in names)
            if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr", "hasattr"):
                said = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
                if isinstance(said, str) and is_private(said) and said not in own | DOCUMENTED:
                    yield f"{node.lineno}: '{said}'"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("PREFECT__"):
            yield f"{node.lineno}: {node.value}"  # a setting that Prefect keeps for itself


def _is_own(node: ast.Attribute, own: set[str]) -> bool:
    return node.attr in DOCUMENTED or node.attr in own or _is_self(node.value)


def _has_private(name: str) -> bool:
    return any(is_private(one) for one in name.split("."))


def test_nothing_uses_a_private_part_of_another_project() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    fields = {name for path in files for name in field_names(path)}
    found = []
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(EXEMPT):
            found += [f"{name}:{use}" for use in private_uses(path.read_text(), own_names(path) | fields)]
    assert [use for use in found if not use.endswith(GDAL)] == []


@pytest.mark.parametrize(
    "source",
    [
        "from ray._private import worker",
        "import ray._raylet",
        "ray.worker._global_node.kill()",
        "config._attn_implementation = 'flash'",
        "ray.init(_temp_dir='/tmp')",
        "getattr(table, '_table')",
        "os.environ['PREFECT__SERVER_EPHEMERAL'] = '1'",
    ],
)
def test_a_use_would_be_found(source: str) -> None:
    assert len(list(private_uses(source, set()))) == 1


def test_our_own_are_allowed() -> None:
    source = (
        "class A:\n    def __init__(self):\n        self._x = 1\n    def same(self, other):\n        return other._x"
    )
    assert list(private_uses(source, {"_x"})) == []
