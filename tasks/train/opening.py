"""Opening the model that a phase starts from; what is wrong with it is told before anything heavy is loaded."""

import json
import math
import re
from pathlib import Path
from typing import Any, Literal

from schemas.errors import GeofixError, InputError
from schemas.extras import require_extras
from schemas.settings.train import TrainSettings
from tasks.train import packaged
from tasks.train.memory import PACKED, Shape

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
# Any one of each: what transformers opens tokenizer and image processor from.
TOKENIZERS = ("tokenizer.json", "vocab.json")
PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def check_base(settings: TrainSettings) -> None:
    """Raise what is wrong with `train.base`: missing, of another kind, or incomplete; or no `train` extra."""
    require_extras("training", "train")
    require_base(settings)
    if settings.base == "tiny" or not settings.phases:
        return
    folder = base_folder(settings.base)
    check_folder(folder, f"train.base={settings.base}")


def require_base(settings: TrainSettings) -> None:
    """InputError where something would be trained and no model is named: `tiny` stands for none unless it is named."""
    if settings.phases and not settings.base:
        raise InputError(
            f"train.base: recipe {settings.recipe} names no model to train; give a folder or hub name (--set "
            "train.base=Qwen/Qwen2.5-VL-7B-Instruct), or say train.base=tiny for two layers of random weights"
        )


def base_folder(base: str) -> Path:
    """The folder of a base: a packaged one, a path, or a hub name that was downloaded to the local cache before."""
    if base in packaged.FILES:
        return packaged.packaged_folder(base)
    path = Path(base).expanduser()
    if base and path.is_dir():
        return path
    if not _HUB_NAME.fullmatch(base) or path.is_absolute():
        raise GeofixError(f"train.base={base}: there is no such folder; give the folder of a checkpoint")
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        cached = [repo for repo in scan_cache_dir().repos if repo.repo_id == base and repo.repo_type == "model"]
    except CacheNotFound:
        cached = []
    folders = [
        revision.snapshot_path
        for repo in cached
        for revision in sorted(repo.revisions, key=lambda revision: revision.last_modified, reverse=True)
    ]
    if not folders:
        raise GeofixError(
            f"train.base={base}: neither a folder here nor a model in the local cache {constants.HF_HUB_CACHE}; "
            f"download it (`hf download {base}`) or give the folder of a checkpoint"
        )
    return Path(folders[0])


def check_folder(folder: Path, name: str) -> Shape:
    """The sizes of a checkpoint, whose files were found to be whole."""
    config = model_config(folder, name)
    kind = config.get("model_type")
    if config.get("quantization_config"):
        raise GeofixError(f"{name} holds quantized weights, which cannot be trained: give the checkpoint in bf16")
    for needed in (("tokenizer_config.json",), TOKENIZERS, PROCESSORS):
        if not any((folder / file).is_file() for file in needed):
            raise GeofixError(f"{name}: {needed[0]} is missing; copy the whole folder of the checkpoint")
    if (folder / INDEX).is_file():
        files = sorted(set(_json(folder / INDEX, name).get("weight_map", {}).values()))
    else:
        files = [SINGLE]
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        shapes |= _check_weights(folder / file, name)
    counted = sum(math.prod(shape) for shape in shapes.values())
    try:
        shape = Shape.of(config, counted)
    except KeyError as error:
        if kind not in PACKED:  # other models name their sizes otherwise; that of their weights is known
            return Shape(0, 0, 0, 0, 0, False, 0, 0, 0, 0, counted)
        raise GeofixError(f"{name}: config.json names no {error}; copy the file again") from None
    if kind in PACKED:
        _check_shapes(shape, shapes, name, has_experts=kind == "qwen3_vl_moe")
    return shape


def training_path(folder: Path) -> Literal["packed", "plain"]:
    """How a checkpoint trains: by the packed path, or by transformers' own forward pass, which is slower."""
    return "packed" if _json(folder / "config.json", str(folder)).get("model_type") in PACKED else "plain"


def model_config(folder: Path, name: str) -> dict[str, Any]:
    """The configuration of a model that reads text with pictures; GeofixError for any other.

    That of a model without a packed path is read by transformers, which knows what its file leaves out.
    """
    config = _json(folder / "config.json", name)
    kind = config.get("model_type")
    if kind in PACKED:
        return config
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    if kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        raise GeofixError(
            f"{name} holds a model of type '{kind}'; training takes Qwen2.5-VL, Qwen3-VL and other models of text "
            "with pictures that transformers opens (AutoModelForImageTextToText)"
        )
    try:
        whole: dict[str, Any] = AutoConfig.from_pretrained(folder).to_dict()
    except (ValueError, TypeError, KeyError, OSError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise GeofixError(f"{name}: transformers cannot open config.json ({reason})") from error
    return whole


def _check_shapes(shape: Shape, shapes: dict[str, tuple[int, ...]], name: str, has_experts: bool) -> None:
    """Weights of another size, or without some of the layers, which transformers would fill with random numbers."""
    wanted = {"embed_tokens.weight": (shape.vocabulary, shape.hidden)}
    for n in range(shape.layers):
        if not has_experts:
            wanted[f"layers.{n}.mlp.down_proj.weight"] = (shape.hidden, shape.intermediate)
        wanted[f"layers.{n}.self_attn.k_proj.weight"] = (shape.key_width, shape.hidden)
    for n in range(shape.vision_layers):
        wanted[f"visual.blocks.{n}.attn.qkv.weight"] = (3 * shape.vision_hidden, shape.vision_hidden)
    depth = {key: key.count(".") + 1 for key in wanted}  # transformers' versions differ in what stands before it
    by_suffix = {
        ".".join(key.split(".")[-count:]): size for count in set(depth.values()) for key, size in shapes.items()
    }
    for key, size in wanted.items():
        if key not in by_suffix:
            raise GeofixError(
                f"{name}: the weights lack {key}, which config.json asks for; copy the whole folder of the checkpoint"
            )
        if by_suffix[key] != size:
            raise GeofixError(
                f"{name}: {key} has the shape {by_suffix[key]} in the weights and {size} in config.json: they are of "
                "different models; copy the whole folder of the checkpoint"
            )


def _check_weights(path: Path, name: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a safetensors file, which stand at its beginning: its length tells whether all of it is there."""
    if not path.is_file():
        raise GeofixError(f"{name}: the weights {path.name} are missing; copy the whole folder of the checkpoint")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if 0 < length < min(size, 100_000_000) else b""
    try:
        tensors = json.loads(header)
        tensors.pop("__metadata__", None)
        end = 8 + length + max(tensor["data_offsets"][1] for tensor in tensors.values())
        shapes = {key: tuple(tensor["shape"]) for key, tensor in tensors.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise GeofixError(f"{name}: the weights {path.name} are damaged; copy the file again") from None
    if end != size:
        raise GeofixError(
            f"{name}: the weights {path.name} have {size:,} of {end:,} bytes; the copy was cut short, copy it again"
        )
    return shapes


def _json(path: Path, name: str) -> dict[str, Any]:
    if not path.is_file():
        raise GeofixError(f"{name}: {path.name} is missing; give the folder of a checkpoint")
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise GeofixError(f"{name}: {path.name} cannot be read as JSON; copy the file again") from None
    return content
