"""Questions and answers as token ids, in the form the chat template gives them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

IGNORED = -100
ANSWER = 48  # tokens of an answer, its end included


class Tokens:
    """The base's tokenizer and the sequences made with it."""

    def __init__(self, file: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(file))
        self.pad, self.end, self.image = (self._id(t) for t in ("<|endoftext|>", "<|im_end|>", "<|image_pad|>"))
        self._questions: dict[str, list[int]] = {}

    def _id(self, token: str) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise ValueError(f"the tokenizer has no token {token}")
        return int(found)

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

    def asked(self, question: str) -> list[int]:
        """What follows the picture until the answer begins."""
        if question not in self._questions:
            self._questions[question] = self.encode(f"<|vision_end|>{question}<|im_end|>\n<|im_start|>assistant\n")
        return self._questions[question]

    @cached_property
    def opening(self) -> list[int]:
        """What stands before the picture."""
        return self.encode("<|im_start|>user\n<|vision_start|>")

    def sequence(
        self, pictures: int, question: str, answer: list[int], length: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """(ids, labels) of one exchange about a picture of n tokens, padded; None where it does not fit."""
        before = [*self.opening, *[self.image] * pictures, *self.asked(question)]
        whole = [*before, *answer, self.end]
        if len(answer) >= ANSWER or len(whole) > length:
            return None
        ids = np.full(length, self.pad, np.int64)
        labels = np.full(length, IGNORED, np.int64)
        ids[: len(whole)] = whole
        labels[len(before) : len(whole)] = whole[len(before) :]
        return ids, labels

    def asked_next(self, question: str) -> list[int]:
        """A further question about the same picture, after an answer."""
        key = "next " + question
        if key not in self._questions:
            self._questions[key] = self.encode(f"\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n")
        return self._questions[key]

    def interview(
        self, pictures: int, exchanges: list[tuple[str, str]], length: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """(ids, labels) of several questions and answers about one picture, padded; None where they do not fit."""
        ids = np.full(length, self.pad, np.int64)
        labels = np.full(length, IGNORED, np.int64)
        at = 0
        for number, (question, text) in enumerate(exchanges):
            before = (
                self.asked_next(question)
                if number
                else [*self.opening, *[self.image] * pictures, *self.asked(question)]
            )
            said = [*self.encode(text), self.end]
            if at + len(before) + len(said) > length:
                return None
            ids[at : at + len(before)] = before
            at += len(before)
            ids[at : at + len(said)] = labels[at : at + len(said)] = said
            at += len(said)
        return ids, labels

    def length(self, pictures: int) -> int:
        """The padded length of exchanges about a picture of n tokens."""
        return -(-(len(self.opening) + pictures + 16 + ANSWER) // 8) * 8
