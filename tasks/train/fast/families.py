"""The vision-language models that train by the fast path, by transformers' name of their architecture."""

from typing import Any

from schemas.errors import GeofixError
from tasks.train.fast.model import FastModel
from tasks.train.fast.qwen2_5_vl import Qwen25VL
from tasks.train.fast.qwen3_vl import Qwen3VL

FAMILIES: dict[str, type[FastModel]] = {"qwen2_5_vl": Qwen25VL, "qwen3_vl": Qwen3VL, "qwen3_vl_moe": Qwen3VL}


def fast_model(model: Any, **options: Any) -> FastModel:
    """The fast path of a plain transformers model; `options` are those of FastModel."""
    kind = model.config.model_type
    if kind not in FAMILIES:
        raise GeofixError(f"no fast path for models of type '{kind}'; there is one for {', '.join(FAMILIES)}")
    return FAMILIES[kind](model, **options)
