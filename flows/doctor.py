"""What is installed, what is missing, which service answers, and what a GPU gives: what a run needs, looked at first.

Nothing is started, written or paid for, and no key is sent: a service that answers, whatever it says, is reachable.
"""

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from flows.order import STAGES, roles_of, services_of
from flows.servers import answers
from schemas.config import Config
from schemas.errors import GeofixError
from schemas.extras import EXTRAS, install_command, missing_modules
from schemas.settings.pools import VLLM_PYTHON
from tasks.lake import Lake
from tasks.lake.location import Location
from tasks.lake.state import state_folder
from tasks.runtime.items.identity import code_version
from tasks.services import MissingKeys, connect
from tasks.train.opening import check_base, require_base

TIMEOUT_S = 10.0  # all at once; a server's first answer after its start takes seconds
LEAST_FREE_GB = 5.0
LIBRARIES = ("prefect", "ray", "deltalake", "polars", "openai")
FOR = {
    "offline": "the offline world (profile offline, `geofix demo`)",
    "train": "training, and serving trained models",
    "cluster": "work pools of Prefect with Docker or Kubernetes",
    "trace": "traces to an OpenTelemetry collector",
}
CPU_ONLY = "none: models train and are served on CPUs, which is for small ones"

Verdict = Literal["ok", "missing", "note"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor. `missing` means that the profile cannot run as it is."""

    about: str
    verdict: Verdict
    text: str


def examine(config: Config) -> list[Finding]:
    """Everything that is worth knowing before a run with this configuration."""
    parts: list[Callable[[Config], Iterator[Finding]]] = [
        _machine, _packages, _vllm, _base, _lake, _keys, _servers, _gpus,
    ]  # fmt: skip
    with ThreadPoolExecutor(len(parts)) as pool:
        return [finding for findings in pool.map(lambda part: list(part(config)), parts) for finding in findings]


def _machine(config: Config) -> Iterator[Finding]:
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield Finding("geofix", "ok", f"{code_version()}, {system}, {os.cpu_count()} cores, {memory_gb:.0f} GB")
    yield Finding("packages", "ok", ", ".join(f"{name} {_version(name)}" for name in LIBRARIES))


def _packages(config: Config) -> Iterator[Finding]:
    needed = {"offline"} if config.offline.serve else set()
    for extra in EXTRAS:
        absent = missing_modules(extra)
        if not absent:
            yield Finding(f"extra {extra}", "ok", FOR[extra])
        else:
            text = f"{FOR[extra]}: {install_command(extra)} (no {', '.join(absent)})"
            yield Finding(f"extra {extra}", "missing" if extra in needed else "note", text)


def _vllm(config: Config) -> Iterator[Finding]:
    python = os.environ.get(VLLM_PYTHON) or ".venv-vllm/bin/python"
    is_needed = any(pool.engine == "vllm" for pool in config.models.pools.values()) and config.spread.address is None
    if shutil.which(python):
        yield Finding("vLLM", "ok", python)
    else:
        text = f"no Python at {python} ({VLLM_PYTHON}): `make vllm`, for pools and `geofix serve --engine vllm`"
        yield Finding("vLLM", "missing" if is_needed else "note", text)


def _base(config: Config) -> Iterator[Finding]:
    """The model that is trained; one that is not here matters where training can run."""
    if not config.train.phases:
        return
    about = f"{config.train.base or 'none'}, which recipe {config.recipe} trains"
    try:
        require_base(config.train)
        if not missing_modules("train"):
            check_base(config.train)
    except GeofixError as error:
        yield Finding("base", "missing", str(error))
    else:
        yield Finding("base", "ok", about)


def _lake(config: Config) -> Iterator[Finding]:
    location = Location.parse(config.lake)
    state = state_folder(location)
    try:
        tables = Lake(location, read_only=True).existing()
        text = f"{location.uri}, {len(tables)} tables" if tables else f"{location.uri}, empty"
        yield from (_writable("lake", location.folder, text) if location.folder else [Finding("lake", "ok", text)])
    except GeofixError as error:
        yield Finding("lake", "missing", str(error))
    if not location.is_local:
        yield from _writable("local state", state, str(state))


def _writable(about: str, folder: Path, text: str) -> Iterator[Finding]:
    """Whether a folder, or the first one above it that there is, can be written, and has room."""
    there = next((parent for parent in (folder, *folder.parents) if parent.exists()), Path("/"))
    if not os.access(there, os.W_OK):
        yield Finding(about, "missing", f"{text}: {there} cannot be written")
        return
    free_gb = shutil.disk_usage(there).free / 1e9
    verdict: Verdict = "ok" if free_gb >= LEAST_FREE_GB else "missing"
    yield Finding(about, verdict, f"{text}, {free_gb:.0f} GB free")


def _keys(config: Config) -> Iterator[Finding]:
    stages = [stage for stage in STAGES if stage not in ("difficulty", "train") or not missing_modules("train")]
    roles = [role for _, role in roles_of(config, stages)]
    try:
        connect(config.services, os.environ, services_of(config, stages), config.models, roles)
    except MissingKeys as error:
        yield Finding("keys", "missing", str(error))
    else:
        yield Finding(
            "keys", "ok", f"recipe {config.recipe}, profile {config.profile}: all that its stages need are set"
        )


def _servers(config: Config) -> Iterator[Finding]:
    addresses = _asked(config)
    if config.offline.serve:
        port = config.offline.port
        runs = answers(f"http://127.0.0.1:{port}/health")
        text = f"runs at port {port}" if runs else "started by each run, or by `geofix offline`"
        yield Finding("offline world", "ok", text)
    with ThreadPoolExecutor(max(1, len(addresses))) as pool:
        for name, (verdict, text) in zip(addresses, pool.map(_reach, addresses.values()), strict=True):
            yield Finding(name, verdict, text)
    yield _prefect(config)
    yield _ray(config)


def _asked(config: Config) -> dict[str, str]:
    """Addresses of the services and models that stages ask; those of an offline world are the run's own."""
    if config.offline.serve:
        return {}
    needed = services_of(config, STAGES)
    services = {name: endpoint for name, endpoint in config.services.endpoints().items() if name in needed}
    endpoints = {config.models.role(role).endpoint for _, role in roles_of(config, STAGES)}
    models = {f"models {name}": endpoint for name, endpoint in config.models.endpoints.items() if name in endpoints}
    return {name: endpoint.base_url for name, endpoint in {**services, **models}.items() if endpoint.base_url}


def _reach(url: str) -> tuple[Verdict, str]:
    import httpx

    try:
        answer = httpx.get(url, timeout=TIMEOUT_S, follow_redirects=False)
    except httpx.TimeoutException:
        return "missing", f"{url} does not answer within {TIMEOUT_S:g} s"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return "missing", f"{url} does not answer ({type(error).__name__})"
    return "ok", f"{url} answers ({answer.elapsed.total_seconds() * 1000:.0f} ms)"


def _prefect(config: Config) -> Finding:
    from flows.background import running_api

    api = os.environ.get("PREFECT_API_URL")
    if api:
        verdict, text = _reach(f"{api.rstrip('/')}/health")
        return Finding("Prefect", verdict, text)
    location = Location.parse(config.lake)
    running = running_api(Lake(location, read_only=True)) if location.folder and location.folder.exists() else None
    return Finding("Prefect", "ok", f"{running} (geofix up)" if running else "a server of the command's own")


def _ray(config: Config) -> Finding:
    address = config.spread.address
    if address is None:
        return Finding("Ray", "ok", "private, on this machine; ends with the command")
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S):
            return Finding("Ray", "ok", f"{address} answers")
    except OSError as error:
        return Finding("Ray", "missing", f"{address} does not answer ({error.strerror or type(error).__name__})")


def _gpus(config: Config) -> Iterator[Finding]:
    query = ["nvidia-smi", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        yield Finding("GPU", "note", CPU_ONLY)
        return
    for number, line in enumerate(lines):
        name, memory_mb, capability = (part.strip() for part in line.split(","))
        computes = "bfloat16" if float(capability) >= 8 else "no bfloat16: set train.precision=fp32"
        yield Finding(f"GPU {number}", "ok", f"{name}, {float(memory_mb) / 1024:.0f} GiB, {computes}{_fits(memory_mb)}")
    if not missing_modules("train"):
        yield _torch()


def _fits(memory_mb: str) -> str:
    """The largest model that trains on it whole: weights and gradients of 2 bytes, AdamW's 8, a fifth for the rest."""
    billions = float(memory_mb) * 2**20 * 0.8 / 12e9
    return f", trains up to about {billions:.0f} billion parameters whole"


def _torch() -> Finding:
    """In a process of its own: torch takes seconds to import, and holds the GPU afterwards."""
    script = "import torch; print(torch.__version__, torch.cuda.is_available())"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    version, _, works = process.stdout.strip().partition(" ")
    if works == "True":
        return Finding("torch", "ok", f"{version}, uses the GPU")
    return Finding("torch", "missing", f"{version or 'does not import'}: built without CUDA; install a build for it")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
