"""Questions and answers as token ids, in the form the chat template gives them; and lessons in quoting.

A base that only ever answered about pictures has never repeated a word it was told: the part of attention that looks
for what followed the same letters before (an induction head) is not there. An agent needs it to carry a tool's
coordinates into its answer, so it is practised first, in texts of the form tools and answers have: random letters and
numbers, no place among them.
"""

import json
import random
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from infra.pretrain.pictures import READ
from tasks.train.fast.packing import Packed

IGNORED = -100
Sequenced = tuple[np.ndarray, np.ndarray]  # ids and labels, padded
ANSWER = 48  # tokens of an answer, its end included


def stacked(made: Sequence[Sequenced]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels of sequences of one length, as a batch."""
    ids, labels = (torch.from_numpy(np.stack(part)) for part in zip(*made, strict=True))
    return ids, labels


class Tokens:
    """The base's tokenizer and the sequences made with it."""

    def __init__(self, file: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(file))
        self.pad, self.end, self.image = (self._id(t) for t in ("<|endoftext|>", "<|im_end|>", "<|image_pad|>"))
        self._questions: dict[str, list[int]] = {}

    def _id(self, token: str) -> int:
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise ValueError(f"the tokenizer has no token {token}")
        return int(token_id)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    @cached_property
    def _letters(self) -> dict[str, list[int]]:
        return {}

    def spelled(self, text: str) -> list[int]:
        """The text letter by letter: a reader copies letters, whatever words the tokenizer knows."""
        ids: list[int] = []
        for letter in text:
            if letter not in self._letters:
                self._letters[letter] = self.encode(letter)
            ids += self._letters[letter]
        return ids

    def question_ids(self, question: str) -> list[int]:
        """What follows the picture until the answer begins."""
        if question not in self._questions:
            self._questions[question] = self.encode(f"<|vision_end|>{question}<|im_end|>\n<|im_start|>assistant\n")
        return self._questions[question]

    @cached_property
    def opening(self) -> list[int]:
        """What stands before the picture."""
        return self.encode("<|im_start|>user\n<|vision_start|>")

    def asked_next(self, question: str) -> list[int]:
        """A further question about the same picture, after an answer."""
        key = "next " + question
        if key not in self._questions:
            self._questions[key] = self.encode(f"\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
        return self._questions[key]

    def sequence(self, pictures: int, exchanges: Sequence[tuple[str, Sequence[int]]], length: int) -> Sequenced | None:
        """(ids, labels) of questions and answers about a picture of n tokens, padded; None where they do not fit."""
        ids = np.full(length, self.pad, np.int64)
        labels = np.full(length, IGNORED, np.int64)
        opening, at = [*self.opening, *[self.image] * pictures], 0
        for number, (question, answer) in enumerate(exchanges):
            before = self.asked_next(question) if number else [*opening, *self.question_ids(question)]
            begin, end = at + len(before), at + len(before) + len(answer) + 1
            if len(answer) >= ANSWER or end > length:
                return None
            ids[at:begin] = before
            ids[begin:end] = labels[begin:end] = [*answer, self.end]
            at = end
        return ids, labels

    def reading(self, pictures: int, line: int, text: str) -> Sequenced | None:
        """(ids, labels) of reading a line of a sign letter by letter; None where it is too long."""
        return self.sequence(pictures, [(READ[line], self.spelled(" ".join(text.split())))], self.length(pictures))

    def length(self, pictures: int) -> int:
        """The padded length of exchanges about a picture of n tokens."""
        return -(-(len(self.opening) + pictures + 16 + ANSWER) // 8) * 8


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_SYLLABLES = ["bacedifoguhajekilomunaperisotuvawexiyozaarelinorunstkrdrllnn"[k : k + 2] for k in range(0, 60, 2)]
Exchange = tuple[list[int], list[int]]  # ids and labels
RECORDS = 1  # the level from which records come


def repeat(tokens: Tokens, rng: random.Random, count: int) -> Exchange:
    """A string of random letters twice; the second time is learned."""
    letters = [tokens.encode(rng.choice(LETTERS))[0] for _ in range(count)]
    mark = tokens.encode("\n")
    return [*letters, *mark, *letters, tokens.end], [*[IGNORED] * (count + len(mark)), *letters, tokens.end]


def record(tokens: Tokens, rng: random.Random) -> Exchange:
    """What a geocoder could have found, and the answer's four lines copied from it; the answer is learned."""
    told, answer_text = record_texts(rng)
    prompt = tokens.encode(f"<|im_start|>user\n{told}<|im_end|>\n<|im_start|>assistant\n")
    answer = [*tokens.encode(answer_text), tokens.end]
    return [*prompt, *answer], [*[IGNORED] * len(prompt), *answer]


def record_texts(rng: random.Random) -> tuple[str, str]:
    """A geocoder's result of an invented place, and the answer that is copied from it."""
    lat, lon = rng.uniform(-89, 89), rng.uniform(-179, 179)
    street, city, region, country = (_name(rng) for _ in range(4))
    value = {"results": [{
        "lat": round(lat, 7), "lon": round(lon, 7), "name": street,
        "display_name": ", ".join((street, city, region, country)), "country": country,
        "country_code": country[:2].upper(), "region": region, "city": city, "importance": round(rng.random(), 3),
    }]}  # fmt: skip
    told = f"<tool_response>\n{json.dumps(value, ensure_ascii=False)}\n</tool_response>"
    answer = f"<answer>\nCountry: {country}\nCity: {city}\nLatitude: {shortened(lat)}\nLongitude: {shortened(lon)}\n"
    return told, answer + "</answer>"


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
