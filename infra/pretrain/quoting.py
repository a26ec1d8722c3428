"""Lessons in quoting: say again what stands in the conversation. Random letters and numbers, no place among them.

A base that was only ever asked about pictures has never repeated a word it was told: the part of attention that looks
for what followed the same letters before (an induction head) is not there. An agent needs it to carry a tool's
coordinates into its answer, so it is practised first, in texts of the form tools and answers have.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

import torch

from infra.pretrain.tokens import IGNORED, Tokens
from tasks.train.fast.packing import Packed

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_SYLLABLES = ["bacedifoguhajekilomunaperisotuvawexiyozaarelinorunstkrdrllnn"[k : k + 2] for k in range(0, 60, 2)]
Exchange = tuple[list[int], list[int]]  # ids and labels
RECORDS = 1  # the level from which records come


def repeat(tokens: Tokens, rng: random.Random, count: int) -> Exchange:
    """A string of random letters twice; the second time is learned."""
    said = [tokens.encode(rng.choice(LETTERS))[0] for _ in range(count)]
    mark = tokens.encode("\n")
    return [*said, *mark, *said, tokens.end], [*[IGNORED] * (count + len(mark)), *said, tokens.end]


def record(tokens: Tokens, rng: random.Random) -> Exchange:
    """What a geocoder could have found, and the answer's four lines copied from it; the answer is learned."""
    lat, lon = rng.uniform(-89, 89), rng.uniform(-179, 179)
    street, city, region, country = (_name(rng) for _ in range(4))
    value = {"results": [{
        "lat": round(lat, 7), "lon": round(lon, 7), "name": street,
        "display_name": ", ".join((street, city, region, country)), "country": country,
        "country_code": country[:2].upper(), "region": region, "city": city, "importance": round(rng.random(), 3),
    }]}  # fmt: skip
    told = json.dumps(value, ensure_ascii=False)
    before = f"<|im_start|>user\n<tool_response>\n{told}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    said = f"<answer>\nCountry: {country}\nCity: {city}\nLatitude: {shortened(lat)}\nLongitude: {shortened(lon)}\n"
    asked, answer = tokens.encode(before), [*tokens.encode(said + "</answer>"), tokens.end]
    return [*asked, *answer], [*[IGNORED] * len(asked), *answer]


def shortened(degrees: float) -> str:
    """The number as it is copied letter by letter: two decimals, cut and not rounded."""
    whole, _, decimals = f"{degrees:.7f}".partition(".")
    return f"{whole}.{decimals[:2]}"


def _name(rng: random.Random) -> str:
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randrange(2, 5))).capitalize()


class Quotes(torch.utils.data.IterableDataset[tuple[int, torch.Tensor, torch.Tensor]]):
    """Endless (level, ids, labels) of lessons in quoting, at the level that `level` says; all processes share it."""

    def __init__(self, tokens: Tokens, level: torch.Tensor, batch: int, seed: int) -> None:
        self.tokens, self.level, self.batch, self.seed = tokens, level, batch, seed

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        worker = torch.utils.data.get_worker_info()
        rng = random.Random(f"quotes {self.seed} {worker.id if worker else 0}")
        while True:
            level = int(self.level[0])
            if level < RECORDS or rng.random() < 0.3:
                count = rng.randrange(6, 40)
                exchanges = [repeat(self.tokens, rng, count) for _ in range(self.batch)]
            else:
                exchanges = [record(self.tokens, rng) for _ in range(max(1, self.batch // 4))]
            ids, labels = padded(exchanges, self.tokens.pad)
            yield level, torch.tensor(ids), torch.tensor(labels)


def padded(exchanges: Sequence[Exchange], pad: int) -> tuple[list[list[int]], list[list[int]]]:
    """Ids and labels, all as long as the longest."""
    length = max(len(ids) for ids, _ in exchanges)
    return (
        [[*ids, *[pad] * (length - len(ids))] for ids, _ in exchanges],
        [[*labels, *[IGNORED] * (length - len(labels))] for _, labels in exchanges],
    )


def text_batch(ids: torch.Tensor, labels: torch.Tensor, device: torch.device) -> Packed:
    """Rows of equally long exchanges without pictures, as the trainer takes them."""
    count, length = ids.shape
    flat, targets = ids.flatten(), labels.flatten()
    at = torch.nonzero(targets != IGNORED).flatten()
    return Packed(
        flat, torch.arange(length).repeat(count).expand(3, -1), (length,) * count, torch.zeros(0, dtype=torch.long), (),
        None, at - 1, targets[at],
    ).to(device)  # fmt: skip
