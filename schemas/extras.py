"""The extras of this package: what each one installs, and the line that says how to install a missing one."""

from importlib.util import find_spec

from schemas.errors import GeofixError

# The modules that show whether an extra of pyproject.toml is installed.
EXTRAS = {
    "offline": ("rapidocr", "onnxruntime", "ttf_opensans", "matplotlib_fontja"),
    "train": ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "safetensors", "tokenizers"),
    "cluster": ("prefect_docker", "prefect_kubernetes"),
    "trace": ("opentelemetry.exporter.otlp.proto.http",),
}


class MissingExtra(GeofixError):
    """A package that only some commands need is not installed."""


def require_extras(what: str, *extras: str) -> None:
    """Raise MissingExtra if `what` cannot run because one of these extras is not installed."""
    missing = {extra: absent for extra in extras if (absent := missing_modules(extra))}
    if missing:
        modules = ", ".join(module for absent in missing.values() for module in absent)
        raise MissingExtra(f"{what} needs packages that are not installed ({modules}): {install_command(*missing)}")


def missing_modules(extra: str) -> list[str]:
    """The modules of an extra that are not installed. Looks for them without importing them."""
    return [module for module in EXTRAS[extra] if not _is_there(module)]


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor is the package it would lie in
        return False


def extra_of(module: str | None) -> str | None:
    """The extra that installs a module, or None if no extra does."""
    top = (module or "").partition(".")[0]
    tops = {extra: [module.partition(".")[0] for module in modules] for extra, modules in EXTRAS.items()}
    return next((extra for extra, modules in tops.items() if top in modules), None)


def install_command(*extras: str) -> str:
    """The command that installs these extras."""
    return f"pip install 'geofix[{','.join(extras)}]'"
