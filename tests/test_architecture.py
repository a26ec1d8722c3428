"""Imports run one way, without circles: flows -> stages -> ground rooms -> schemas; infra/ is other programs."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("plan", "collect", "ingest", "curate", "review", "synthesize", "difficulty", "train", "evaluate")
# From the bottom up: a room may import those to its left.
ROOMS = ("geo", "lake", "imaging", "services", "runtime", "reward", "agent", "recipes")
OURS = ("flows", "tasks", "schemas", "infra", "bench")


@cache
def tree(path: Path) -> ast.Module:
    """A file as Python reads it, once for all tests."""
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    """Modules of ours and of others that a file imports, at the top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            # `from package import module` names a module as well
            found |= {f"{node.module}.{alias.name}" for alias in node.names if _is_module(node.module, alias.name)}
    return found


def _is_module(package: str, name: str) -> bool:
    folder = ROOT / package.replace(".", "/")
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def offenders(folder: str, forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files(folder)
        for name in imports(path)
        if any(name == f or name.startswith(f + ".") for f in forbidden)
    ]


def test_there_is_code_to_look_at() -> None:
    assert all(len(files(folder)) > 3 for folder in ("flows", "tasks", "schemas", "infra"))
    assert "tasks.lake" in imports(ROOT / "tasks/runtime/runner.py") | imports(ROOT / "tasks/runtime/stage.py")


def test_tasks_holds_stages_and_rooms_and_nothing_else() -> None:
    folders = {path.name for path in (ROOT / "tasks").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {*STAGES, *ROOMS}
    assert len(STAGES) <= 9 and len(ROOMS) <= 8
    assert [path.name for path in (ROOT / "tasks").glob("*.py")] == ["__init__.py"]


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("schemas", ("flows", "tasks", "infra", "bench", "prefect", "ray")),
        ("tasks", ("flows", "infra", "bench", "prefect")),
        ("flows", ("bench", "infra.pretrain")),  # both are started as programs of their own, if at all
        ("infra/offline", ("flows", "tasks", "bench", "prefect", "ray")),
        ("infra/serve", ("flows", "bench", "prefect", "ray")),
    ],
)
def test_a_floor_reaches_only_down(folder: str, forbidden: tuple[str, ...]) -> None:
    assert offenders(folder, forbidden) == []


@pytest.mark.parametrize("stage", STAGES)
def test_no_stage_imports_another(stage: str) -> None:
    assert offenders(f"tasks/{stage}", tuple(f"tasks.{other}" for other in STAGES if other != stage)) == []


@pytest.mark.parametrize("number", range(len(ROOMS)))
def test_a_room_imports_only_those_below(number: int) -> None:
    above = (*ROOMS[number + 1 :], *STAGES)
    assert offenders(f"tasks/{ROOMS[number]}", tuple(f"tasks.{name}" for name in above)) == []


@pytest.mark.parametrize("folder", OURS)
def test_no_circle_between_files(folder: str) -> None:
    """Imports inside functions and for type checkers only count like those at the top."""
    names = {_module(path): path for path in files(folder)}
    graph = {name: {one for one in modules_of(path) if one in names and one != name} for name, path in names.items()}
    assert circles(graph) == []


@cache
def modules_of(path: Path) -> set[str]:
    """The modules a file imports, anywhere: `from package import module` names the module, not the package."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = {f"{node.module}.{a.name}" for a in node.names if _is_module(node.module, a.name)}
            found |= modules or {node.module}
    return found


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Tarjan's strongly connected components of more than one file."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            part = []
            while True:
                part.append(stack.pop())
                if part[-1] == node:
                    break
            if len(part) > 1:
                found.append(sorted(part))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def test_a_circle_would_be_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


# Kernels that torch offers under no other name, each behind a test of its result.
PRIVATE_ALLOWED = "tasks/train/fast/"


def test_no_private_parts_of_other_projects() -> None:
    trees = {
        path.relative_to(ROOT).as_posix(): tree(path)
        for folder in ("flows", "tasks", "schemas", "infra")
        for path in files(folder)
    }
    own = set().union(*map(own_names, trees.values()))
    found = {name: uses for name, tree in trees.items() if (uses := private_uses(tree, own))}
    assert {n: uses for n, uses in found.items() if not n.startswith(PRIVATE_ALLOWED)} == {}


def own_names(tree: ast.AST) -> set[str]:
    """What a file defines: functions, classes, variables, and the attributes it gives to `self`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
            found |= {node.attr} if node.value.id in ("self", "cls") else set()
    return found


def private_uses(tree: ast.AST, own: set[str]) -> list[str]:
    """Names with a leading underscore that a file takes from others: attributes, imports, keywords, getattr."""
    modules: dict[str, str] = {}
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                full = package + alias.name
                modules[(alias.asname or alias.name).partition(".")[0]] = full
                found += [full] if _is_foreign(full) and any(map(_is_private, full.split("."))) else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            root: ast.expr = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            origin = modules.get(root.id, "tasks") if isinstance(root, ast.Name) else "tasks"
            found += [ast.unparse(node)] if _is_foreign(origin) or node.attr not in own else []
        elif isinstance(node, ast.keyword) and _is_private(node.arg or "") and node.arg not in own:
            found.append(f"{node.arg}=")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            found += [ast.unparse(node)] if _is_private(str(name)) and name not in own else []
    return [use for use in found if use != "os._exit"]  # documented, and the only way to end at once


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name != "_"


def _is_foreign(module: str) -> bool:
    return module.partition(".")[0] not in OURS


@pytest.mark.parametrize(
    "code",
    [
        "import ray._private.worker",
        "from ray import _private",
        "import torch\ntorch._dynamo.reset()",
        "client._transport",
        "getattr(client, '_transport')",
        "ray.init(_temp_dir='x')",
        "from rasterio._err import CPLE_BaseError",
    ],
)
def test_a_private_part_would_be_found(code: str) -> None:
    assert len(private_uses(ast.parse(code), {"_ours"})) == 1
    assert private_uses(ast.parse("import os\nself._ours = other._ours(_ours=1)\nos._exit(0)"), {"_ours"}) == []
