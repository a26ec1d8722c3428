"""Validation during training: the held-out pictures answered, scored as the recipe and the papers score."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tasks.reward.metrics import THRESHOLDS_KM
from tasks.reward.outcome import figure_name
from tasks.train.encoding import Encoder
from tasks.train.fast.packing import bins
from tasks.train.loop import Figures
from tasks.train.rollouts.source import Judged, Rollouts, Scorer
from tasks.train.token_samples import IGNORED, Sample
from tasks.train.trainable import TrainableModel

NEW_TOKENS = 512
PASS_KM = (0.5, 2.0, 10.0, 25.0, 200.0, 750.0)  # the granularities of Thinking with Map


def validator(
    fast: TrainableModel,
    encoder: Encoder,
    rows: Sequence[Mapping[str, Any]],
    rollouts: Rollouts,
    encode: Callable[[int], Sample],
    scorer: Scorer,
    pack_tokens: int,
    sampled: Rollouts | None = None,
) -> Callable[[], Figures]:
    """A function that asks the model as it is: one answer for each picture, and the loss of the true answer.

    `rows` have `gold_json` and the truth; `encode` gives the prompt of each, which `rollouts` answer once. `sampled`
    answer it K times, for pass@k of every k that is a power of two.
    """
    gold = [encoder.conversation(row["gold_json"]) for row in rows]
    prompts = [encode(number) for number in range(len(rows))]
    trained = sum(label != IGNORED for sample in gold for label in sample.labels[1:])

    def validate() -> Figures:
        total = torch.zeros((), device=fast.device)
        lengths = [len(sample.ids) for sample in gold]
        for members in bins(lengths, max([pack_tokens, *lengths])):
            total += fast.loss(fast.pack([gold[n] for n in members]), max(1, trained))
        episodes = [episode for [episode] in rollouts.draw(prompts, rows)]
        judged = scorer(list(zip(episodes, rows, strict=True)))
        used = [judgement for judgement in judged if judgement.reward is not None]
        figures: Figures = {"loss": float(total), "images": float(len(rows))}
        figures["reward"] = sum(judgement.reward or 0.0 for judgement in used) / max(1, len(used))
        figures["unread"] = sum(judgement.reason is not None for judgement in judged) / len(judged)
        parts = sorted({name for judgement in used for name in judgement.parts})
        figures |= {
            figure_name(name): sum(judgement.parts.get(name, 0.0) for judgement in used) / len(used) for name in parts
        }
        errors = [judgement.error_km for judgement in judged]
        if not parts or any(error is not None for error in errors):  # a reward by levels alone measures no distance
            for limit_km in THRESHOLDS_KM:
                near = [error is not None and error < limit_km for error in errors]
                figures[f"acc@{limit_km:g}km"] = sum(near) / len(near)
        if sampled is not None:
            tried = sampled.draw(prompts, rows)
            pairs = [(episode, row) for group, row in zip(tried, rows, strict=True) for episode in group]
            worth = iter(scorer(pairs))
            figures |= pass_figures([[next(worth) for _ in group] for group in tried])
        return figures

    return validate


def pass_figures(groups: Sequence[Sequence[Judged]]) -> Figures:
    """pass@k at each distance, over pictures with K answers each (Thinking with Map, figure 5).

    Of K answers with c near enough, k drawn at random hold one of them with 1 - C(K - c, k) / C(K, k). Answers that an
    outage excluded are not among the K.
    """
    figures: Figures = {}
    known = [[judgement for judgement in group if judgement.reward is not None] for group in groups]
    k = 1
    while k <= max(map(len, groups), default=0):
        large_enough = [group for group in known if len(group) >= k]
        for limit_km in PASS_KM if large_enough else ():
            far = [
                sum(judgement.error_km is None or judgement.error_km >= limit_km for judgement in group)
                for group in large_enough
            ]
            shares = [
                1 - math.comb(n, k) / math.comb(len(group), k) for n, group in zip(far, large_enough, strict=True)
            ]
            figures[f"pass@{k}/acc@{limit_km:g}km"] = sum(shares) / len(shares)
        k *= 2
    return figures
