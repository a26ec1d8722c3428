"""Imports run one way, without circles: flows -> stages -> ground rooms -> schemas; infra/ is other programs."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("plan", "collect", "ingest", "curate", "review", "synthesize", "difficulty", "train", "evaluate")
# From the bottom up: a room may import those to its left.
ROOMS = ("geo", "lake", "imaging", "services", "runtime", "reward", "agent")
MOST_LINES = 400
TRANSPORT = ["tasks.services.http", "tasks.services.models"]  # goes with the transport of our own


def imports(path: Path) -> set[str]:
    """Modules of ours and of others that a file imports, at the top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
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
        ("flows", ("bench",)),
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


@pytest.mark.parametrize("folder", ["flows", "tasks", "schemas", "infra", "bench"])
def test_no_circle_between_files(folder: str) -> None:
    """Imports inside functions and for type checkers count: a circle that is hidden there is one still."""
    names = {_module(path): path for path in files(folder)}
    graph = {name: {one for one in _imported(path) if one in names} - {name} for name, path in names.items()}
    assert [one for one in circles(graph) if one != TRANSPORT] == []


def _imported(path: Path) -> set[str]:
    """The modules a file imports; of `from package import module` the module alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
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


def test_files_stay_small() -> None:
    long = {
        path.relative_to(ROOT).as_posix(): count
        for folder in ("flows", "tasks", "schemas", "infra")
        for path in files(folder)
        if (count := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert long == {}
