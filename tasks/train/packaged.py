"""The packaged base that can see: one safetensors file, unpacked to the user's cache when it is first asked for.

Matrices are int8 with a scale for each row, everything else is bf16; the text files of the model's folder
(configuration, tokenizer, processor) are its metadata. docs/it-learns.md says how it was made and what it can do.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

NAME = "sees-2"  # its weights never change: other weights get another name, because models are named after it
FILE = Path(__file__).parent / "data" / f"{NAME}.safetensors"
WEIGHTS = "model.safetensors"
_SCALE = ".scale"


def packaged_folder() -> Path:
    """The folder of the packaged base, complete; unpacked once for each user."""
    digest = hashlib.sha256(FILE.read_bytes()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "geofix" / "bases"
    folder = cache / f"{NAME}-{digest}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=cache, prefix=f".{NAME}-"))
        unpack_base(FILE, partial)
        try:
            partial.rename(folder)
        except OSError:  # another process was quicker; both hold the same
            shutil.rmtree(partial)
    return folder


def pack_base(folder: Path, file: Path) -> None:
    """Write a model's folder as one small file."""
    import torch
    from safetensors.torch import load_file, save_file

    packed: dict[str, torch.Tensor] = {}
    for name, weight in load_file(folder / WEIGHTS).items():
        if weight.ndim < 2:
            packed[name] = weight.to(torch.bfloat16)
            continue
        rows = weight.float().flatten(1)
        scale = rows.abs().amax(1).clamp_min(1e-12) / 127
        packed[name] = (rows / scale[:, None]).round().clamp(-127, 127).to(torch.int8).view(weight.shape)
        packed[name + _SCALE] = scale
    texts = {
        path.name: path.read_text(encoding="utf-8")
        for path in sorted(folder.iterdir())
        if path.suffix in (".json", ".jinja") and not path.name.endswith(".index.json")
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(packed, file, metadata={"texts": json.dumps(texts, sort_keys=True)})


def unpack_base(file: Path, folder: Path) -> Path:
    """The folder that was packed, weights in fp32; the same bytes every time."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights: dict[str, torch.Tensor] = {}
    with safe_open(file, framework="pt") as packed:
        for name, text in json.loads(packed.metadata()["texts"]).items():
            (folder / Path(name).name).write_text(text, encoding="utf-8")
        names = set(packed.keys())
        for name in sorted(names):
            if name.endswith(_SCALE):
                continue
            weight = packed.get_tensor(name).to(torch.float32)
            if name + _SCALE in names:
                scale = packed.get_tensor(name + _SCALE)
                weight = weight * scale.view(-1, *[1] * (weight.ndim - 1))
            weights[name] = weight
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    return folder
