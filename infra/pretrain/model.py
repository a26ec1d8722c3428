"""The model in training: fp32 weights under a bf16 forward pass, and an extra loss that says where letters stand."""

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from infra.pretrain.tokens import IGNORED
from tasks.train.fast.families import fast_model
from tasks.train.fast.layout import vision_layout
from tasks.train.fast.model import Pictures
from tasks.train.fast.packing import Packed, positions_of

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
Grid = tuple[int, int]


def copy_texts(start: Path, output: Path) -> None:
    """Copy configuration, tokenizer and processor of a model's folder, unless they are there."""
    for path in start.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and not (output / path.name).exists():
            shutil.copy(path, output / path.name)


class Learner:
    """Trains a Qwen2.5-VL on fixed-shape batches of one picture each."""

    def __init__(self, folder: Path, letters: int, seed: int, weights: bool = False, rate: float = 1e-3) -> None:
        from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda" if cuda else "cpu")
        torch.manual_seed(seed)
        if weights:
            model: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        else:
            model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig.from_pretrained(folder))
            for name, weight in model.named_parameters():  # a narrow model starts too quiet with Qwen's 0.02
                if weight.ndim > 1:
                    torch.nn.init.normal_(weight, 0.0, 0.04 if "embed" not in name else 0.06)
        self.model = model.to(self.device)
        self.masters = [weight.detach().clone().float() for weight in self.model.parameters()]
        if cuda:
            self.model = self.model.to(torch.bfloat16)
        self.weights = list(self.model.parameters())
        self.fast = fast_model(self.model)
        width = self.model.config.text_config.hidden_size
        self.letters = torch.nn.Linear(width, letters).to(self.device)
        torch.nn.init.constant_(self.letters.bias, -5.0)
        wide = [master for master in self.masters if master.ndim > 1]
        rest = [master for master in self.masters if master.ndim <= 1] + list(self.letters.parameters())
        self.optimizer = torch.optim.AdamW(
            [{"params": wide, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}],
            lr=rate, betas=(0.9, 0.98), fused=cuda,
        )  # fmt: skip
        self._positions: dict[tuple[Grid, int, int], torch.Tensor] = {}
        self._kept: dict[str, Any] = {}
        self.seen: torch.Tensor | None = None  # the pictures' tokens while the same pictures are seen again and again
        self._mean, self._std = (torch.tensor(v, device=self.device) * 255 for v in (MEAN, STD))
        plain = self.fast.pictures

        def pictures(pixels: torch.Tensor, grids: tuple[tuple[int, int, int], ...]) -> Pictures:
            order = vision_layout(grids, self.fast.shape, self.fast.device).order
            merged = plain(pixels, grids).tokens if self.seen is None else self.seen
            self._kept = {"merged": merged, "order": order}
            return Pictures(merged, order)

        self.fast.pictures = pictures  # type: ignore[method-assign]

    def patches(self, pixels: torch.Tensor, grid: Grid, noise: float) -> torch.Tensor:
        """Pictures as Qwen's image processor gives them; `noise` shifts colours and adds grain, for training."""
        x = pixels.to(self.device, non_blocking=True).float()
        n = len(x)
        if noise:
            gain = 1 + noise * torch.randn(n, 1, 1, 3, device=self.device)
            grain = torch.rand(n, 1, 1, 1, device=self.device) * 50 * noise
            x = x * gain + 50 * noise * torch.randn(n, 1, 1, 3, device=self.device) + grain * torch.randn_like(x)
        x = ((x - self._mean) / self._std).permute(0, 3, 1, 2)
        x = x.reshape(n, 3, grid[0], 2, 14, grid[1], 2, 14).permute(0, 2, 5, 3, 6, 1, 4, 7)
        x = x.unsqueeze(-3).expand(*x.shape[:-2], 2, 14, 14).reshape(n * grid[0] * grid[1] * 4, 1176)
        return x.to(self.weights[0].dtype)

    def packed(self, pixels: torch.Tensor, grid: Grid, ids: torch.Tensor, labels: torch.Tensor, noise: float) -> Packed:
        """A batch of equally long exchanges."""
        n, length = ids.shape
        ids, labels = ids.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
        image = self.fast.image_token
        key = grid, length, int((ids[0] == image).int().argmax())  # where the picture begins
        if key not in self._positions:
            place = positions_of(ids[0].tolist(), [(1, 2 * grid[0], 2 * grid[1])], image, 2)
            self._positions[key] = torch.from_numpy(place.copy()).to(self.device)
        flat, targets = ids.flatten(), labels.flatten()
        trained = torch.nonzero(targets != IGNORED).flatten()
        return Packed(
            flat,
            self._positions[key].repeat(1, n),
            (length,) * n,
            torch.nonzero(flat == image).flatten(),
            ((1, 2 * grid[0], 2 * grid[1]),) * n,
            self.patches(pixels, grid, noise),
            trained - 1,
            targets[trained],
        )

    @property
    def picture_tokens(self) -> torch.Tensor:
        """The pictures' tokens of the last batch."""
        tokens: torch.Tensor = self._kept["merged"]
        return tokens

    def logits(self, batch: Packed) -> torch.Tensor:
        x = self.fast.hidden(batch)[batch.predict_at]
        scores: torch.Tensor = (self.fast.norm(x) @ self.model.lm_head.weight.T).float()
        return scores

    def letter_loss(self, n: int, grid: Grid, letters: torch.Tensor) -> torch.Tensor:
        """How badly each token of the pictures says which letters it holds."""
        merged, order = self._kept["merged"], self._kept["order"]
        tokens = torch.empty_like(merged).index_copy(0, order, merged).view(n, grid[0] * grid[1], -1).float()
        letter_logits = self.letters(tokens)
        target = torch.zeros_like(letter_logits)
        at = letters.to(self.device, non_blocking=True)
        target[at[:, 0], at[:, 1], at[:, 2]] = 1.0
        return F.binary_cross_entropy_with_logits(letter_logits, target, reduction="sum") / max(1, len(at))

    def update(self, loss: torch.Tensor, rate: float) -> None:
        """One optimizer step."""
        loss.backward()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.no_grad():
            for master, weight in zip(self.masters, self.weights, strict=True):
                if master.grad is None:
                    master.grad = torch.zeros_like(master)
                if weight.grad is not None:
                    master.grad.copy_(weight.grad)
                    weight.grad = None
                else:
                    master.grad.zero_()
        torch.nn.utils.clip_grad_norm_([*self.masters, *self.letters.parameters()], 1.0)
        self.optimizer.step()
        self.letters.zero_grad(set_to_none=True)
        self.copy_masters()

    @torch.no_grad()
    def copy_masters(self) -> None:
        """Give the model its fp32 weights, rounded to the type it computes in."""
        for weight, master in zip(self.weights, self.masters, strict=True):
            weight.copy_(master)

    def save(self, start: Path, output: Path) -> None:
        """Write a folder that any Qwen2.5-VL loader opens: weights in bf16, all other files as in `start`."""
        self.copy_masters()
        self.model.to(torch.bfloat16).save_pretrained(output)
        copy_texts(start, output)

    def exact(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """For each sample whether every trained token is the most likely one: its greedy answer is right."""
        trained = labels.to(self.device) != IGNORED
        right = torch.zeros_like(trained)
        right[trained] = logits.argmax(-1) == labels.to(self.device)[trained]
        return (right | ~trained).all(1)
