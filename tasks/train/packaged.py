"""The packaged models: a base that can see, and an agent made of it that finds places of the offline world.

Each is one safetensors file, unpacked to the user's cache when it is first requested. The agent shares the base's
vision tower, which its training left alone: its file holds the language model only. Matrices are int8 with a scale for
each row, everything else is bf16; the text files of the model's folder (configuration, tokenizer, processor) are its
metadata. docs/it-learns.md says how they were made and what they can do.
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

# Weights of a name never change: other weights get another name, because models are named after it.
NAME, AGENT = "sees-2", "finds-2"
_DATA = Path(__file__).parent / "data"
FILES = {name: _DATA / f"{name}.safetensors" for name in (NAME, AGENT)}
SHARED = "visual."  # in the names of the weights that the agent has from the base
WEIGHTS = "model.safetensors"
_SCALE = ".scale"
# The base was taught to read letter by letter, whatever words its tokenizer has: so it writes the name it looks up.
SPELLED = r'(?<=address": "[^"\n]{0,120})[^"\n]'


def packaged_folder(name: str = NAME) -> Path:
    """The folder of a packaged model, complete; unpacked once for each user."""
    needed = [FILES[NAME]] if name == NAME else [FILES[NAME], FILES[name]]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in needed) + SPELLED.encode()).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "geofix" / "bases"
    folder = cache / f"{name}-{digest}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=cache, prefix=f".{name}-"))
        unpack_base(needed[-1], partial, needed[0])
        spell_addresses(partial / "tokenizer.json")
        try:
            partial.rename(folder)
        except OSError:  # another process was quicker; both hold the same
            shutil.rmtree(partial)
    return folder


def spell_addresses(file: Path) -> None:
    """Have the tokenizer of this file take the letters of a geocoder's `address` one by one."""
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    rule = {"type": "Split", "pattern": {"Regex": SPELLED}, "behavior": "Isolated", "invert": False}
    rules = tokenizer["pre_tokenizer"]["pretokenizers"]
    if rule not in rules:
        rules.insert(0, rule)
    file.write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")


def pack_base(folder: Path, file: Path, leave_out: str | None = None) -> None:
    """Write a model's folder as one small file, without the weights whose names hold `leave_out`."""
    import torch
    from safetensors.torch import load_file, save_file

    packed: dict[str, torch.Tensor] = {}
    for name, weight in load_file(folder / WEIGHTS).items():
        if leave_out is not None and leave_out in name:
            continue
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


def unpack_base(file: Path, folder: Path, base: Path | None = None) -> Path:
    """The folder that was packed, weights in fp32; the same bytes every time. What the file lacks comes from `base`."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    texts, weights = _read(file)
    for name, text in texts.items():
        (folder / Path(name).name).write_text(text, encoding="utf-8")
    if base is not None and base != file:
        weights = {name: weight for name, weight in _read(base)[1].items() if SHARED in name} | weights
    save_file(dict(sorted(weights.items())), folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def _read(file: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    import torch
    from safetensors import safe_open

    weights: dict[str, torch.Tensor] = {}
    with safe_open(file, framework="pt") as packed:
        texts: dict[str, str] = json.loads(packed.metadata()["texts"])
        names = set(packed.keys())
        for name in sorted(names):
            if name.endswith(_SCALE):
                continue
            weight = packed.get_tensor(name).to(torch.float32)
            if name + _SCALE in names:
                scale = packed.get_tensor(name + _SCALE)
                weight = weight * scale.view(-1, *[1] * (weight.ndim - 1))
            weights[name] = weight
    return texts, weights
