"""Validation during training: the held-out pictures asked about, scored as the recipe and the papers score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tasks.reward.metrics import THRESHOLDS_KM
from tasks.train.encoding import Encoder
from tasks.train.fast.packing import IGNORED, Sample, bins
from tasks.train.loop import Figures
from tasks.train.rollouts.source import Rollouts, Scorer
from tasks.train.trainable import TrainableModel

NEW_TOKENS = 512


def validator(
    fast: TrainableModel,
    encoder: Encoder,
    rows: Sequence[Mapping[str, Any]],
    rollouts: Rollouts,
    encode: Callable[[int], Sample],
    scorer: Scorer,
    pack_tokens: int,
) -> Callable[[], Figures]:
    """A function that asks the model as it is: one answer for each picture, and the loss of the true answer.

    `rows` have `gold_json` and the truth; `encode` gives the prompt of each, which `rollouts` answer once.
    """
    gold = [encoder.conversation(row["gold_json"]) for row in rows]
    prompts = [encode(number) for number in range(len(rows))]
    trained = sum(label != IGNORED for one in gold for label in one.labels[1:])

    def validate() -> Figures:
        total = torch.zeros((), device=fast.device)
        lengths = [len(one.ids) for one in gold]
        for members in bins(lengths, max([pack_tokens, *lengths])):
            total += fast.loss(fast.pack([gold[n] for n in members]), max(1, trained))
        episodes = [one for [one] in rollouts.draw(prompts, rows)]
        judged = scorer(list(zip(episodes, rows, strict=True)))
        used = [one for one in judged if one.reward is not None]
        figures: Figures = {"loss": float(total), "images": float(len(rows))}
        figures["reward"] = sum(one.reward or 0.0 for one in used) / max(1, len(used))
        figures["unread"] = sum(one.reason is not None for one in judged) / len(judged)
        parts = sorted({name for one in used for name in one.parts})
        figures |= {f"reward/{name}": sum(one.parts.get(name, 0.0) for one in used) / len(used) for name in parts}
        errors = [one.error_km for one in judged]
        if not parts or any(error is not None for error in errors):  # a reward by levels alone measures no distance
            for limit_km in THRESHOLDS_KM:
                near = [error is not None and error < limit_km for error in errors]
                figures[f"acc@{limit_km:g}km"] = sum(near) / len(near)
        return figures

    return validate
