"""What Python does first in the environment of vLLM for CPUs: it prepares the import of torchvision.

The torchvision of the package index is built for CUDA, so that its compiled operators do not load on a machine
without. Its Python part describes two of them anyway, which fails where they are unknown. They are declared here
before torchvision is imported, through torch's public registry; nothing that geofix serves calls them.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class DeclareOperators(MetaPathFinder):
    """Finds nothing; acts once, when torchvision is looked for."""

    library: Any = None  # torch forgets the operators when it goes

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        if name == "torchvision" and DeclareOperators.library is None:
            import torch

            DeclareOperators.library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in OPERATORS:
                DeclareOperators.library.define(operator)


sys.meta_path.insert(0, DeclareOperators())
