"""The street-view providers by name, found by their folders in one of two packages."""

import importlib.util
from pathlib import Path

OURS, OTHERS = ("tasks", "collect", "providers"), ("geofix_providers",)  # ours, and a user's own on the Python path


def provider_packages() -> dict[str, str]:
    """The package of every provider, by name. A folder `my_streets` is the provider `my-streets`."""
    packages: dict[str, str] = {}
    for package in (OURS, OTHERS):
        # By the top package alone: a look for a package inside it would import the stage.
        spec = importlib.util.find_spec(package[0])
        for place in (spec.submodule_search_locations or ()) if spec else ():
            for file in Path(place, *package[1:]).glob("*/__init__.py"):
                folder = file.parent.name
                packages.setdefault(folder.replace("_", "-"), ".".join((*package, folder)))
    return dict(sorted(packages.items()))
