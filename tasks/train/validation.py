"""Validation during training: the held-out pictures asked about, scored as the recipe and the papers score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tasks.reward.metrics import THRESHOLDS_KM
from tasks.reward.outcome import point_error
from tasks.train.encoding import Encoder
from tasks.train.fast.grouped import Completion
from tasks.train.fast.model import FastModel
from tasks.train.fast.packing import IGNORED, bins, pack
from tasks.train.loop import Figures
from tasks.train.rollouts.sampling import Sampling
from tasks.train.rollouts.source import Engines, Episode, Scorer

NEW_TOKENS = 512


def validator(
    fast: FastModel,
    encoder: Encoder,
    rows: Sequence[Mapping[str, Any]],
    scorer: Scorer,
    groups: int,
    new_tokens: int,
    pack_tokens: int,
) -> Callable[[], Figures]:
    """A function that asks the model as it is: one greedy answer for each picture, and the loss of the true answer.

    `rows` have `prompt_json`, `gold_json` and the truth.
    """
    engines = Engines(fast, encoder.end_tokens, groups)
    gold = [encoder.conversation(row["gold_json"]) for row in rows]
    prompts = [encoder.prompt(row["prompt_json"]) for row in rows]
    trained = sum(label != IGNORED for one in gold for label in one.labels[1:])
    limit = min(new_tokens, NEW_TOKENS)

    def validate() -> Figures:
        total = torch.zeros((), device=fast.device)
        lengths = [len(one.ids) for one in gold]
        for members in bins(lengths, max([pack_tokens, *lengths])):
            packed = pack([gold[n] for n in members], fast.image_token, fast.merge).to(fast.device)
            total += fast.loss(packed, max(1, trained))
        found = engines.generate(prompts, 1, limit, Sampling(temperature=0))
        engines.clear()
        episodes = [
            Episode(Completion(one.ids, [True] * len(one.ids)), one.is_finished, encoder.decode(one.ids))
            for [one] in found
        ]
        judged = scorer(list(zip(episodes, rows, strict=True)))
        rewards = [one.reward for one in judged if one.reward is not None]
        figures: Figures = {"loss": float(total), "images": float(len(rows))}
        figures["reward"] = sum(rewards) / max(1, len(rewards))
        figures["unread"] = sum(one.reason is not None for one in judged) / len(judged)
        errors = [
            point_error(episode.answer, row["lat"], row["lon"]).error_km
            for episode, row in zip(episodes, rows, strict=True)
        ]
        for limit_km in THRESHOLDS_KM:
            near = [error is not None and error < limit_km for error in errors]
            figures[f"acc@{limit_km:g}km"] = sum(near) / len(near)
        return figures

    return validate
