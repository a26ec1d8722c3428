"""The encoder of an image VAE, which compresses a picture eight times each way (appendix C).

Its layers and their names are those of `stabilityai/sd-vae-ft-mse`, so that this model's file, or another one of the
layout, is read as it is. `tiny` is the same encoder in small; it learns to draw the pictures again before it is used.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn
from torch.nn import functional

from schemas.errors import InputError
from tasks.imaging.decode import Encoded

TINY = "tiny"
WEIGHTS, CONFIG = "diffusion_pytorch_model.safetensors", "config.json"
KL_WEIGHT = 1e-3  # of a latent's distance from a unit normal, beside the squared error of the drawing
_OLD_NAMES = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}  # of attention, before 2023


@dataclass(frozen=True)
class EncoderSize:
    """Sizes under the names of the file's config.json."""

    block_out_channels: tuple[int, ...] = (8, 16, 16, 16)
    layers_per_block: int = 1
    norm_num_groups: int = 4
    latent_channels: int = 4
    scaling_factor: float = 1.0


class _Resnet(nn.Module):
    def __init__(self, inside: int, outside: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, inside, 1e-6), nn.Conv2d(inside, outside, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(groups, outside, 1e-6), nn.Conv2d(outside, outside, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.conv1(functional.silu(self.norm1(x)))
        hidden = self.conv2(functional.silu(self.norm2(hidden)))
        return torch.as_tensor(self.conv_shortcut(x) + hidden)


class _Attention(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.group_norm = nn.GroupNorm(groups, channels, 1e-6)
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.group_norm(x).flatten(2).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(self.to_q(rows), self.to_k(rows), self.to_v(rows))
        return torch.as_tensor(x + self.to_out[0](mixed).transpose(1, 2).reshape(x.shape))


class _Halved(nn.Module):
    """Half the size; the layout pads right and below only."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.conv(functional.pad(x, (0, 1, 0, 1))))


class _Block(nn.Module):
    def __init__(self, inside: int, outside: int, layers: int, groups: int, halves: bool) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(_Resnet(outside if at else inside, outside, groups) for at in range(layers))
        self.downsamplers = nn.ModuleList([_Halved(outside)] if halves else [])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (*self.resnets, *self.downsamplers):
            x = layer(x)
        return x


class _Middle(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.resnets = nn.ModuleList(_Resnet(channels, channels, groups) for _ in range(2))
        self.attentions = nn.ModuleList([_Attention(channels, groups)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.resnets[1](self.attentions[0](self.resnets[0](x))))


class _Body(nn.Module):
    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        channels, groups = size.block_out_channels, size.norm_num_groups
        self.conv_in = nn.Conv2d(3, channels[0], 3, padding=1)
        pairs = zip((channels[0], *channels), channels, strict=False)
        self.down_blocks = nn.ModuleList(
            _Block(inside, outside, size.layers_per_block, groups, at < len(channels) - 1)
            for at, (inside, outside) in enumerate(pairs)
        )
        self.mid_block = _Middle(channels[-1], groups)
        self.conv_norm_out = nn.GroupNorm(groups, channels[-1], 1e-6)
        self.conv_out = nn.Conv2d(channels[-1], 2 * size.latent_channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_in(x)
        for block in self.down_blocks:
            x = block(x)
        return torch.as_tensor(self.conv_out(functional.silu(self.conv_norm_out(self.mid_block(x)))))


class PictureEncoder(nn.Module):
    """Pictures in -1..1 to the mean and log variance of their latents."""

    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        self.size = size
        self.encoder = _Body(size)
        self.quant_conv = nn.Conv2d(2 * size.latent_channels, 2 * size.latent_channels, 1)

    def forward(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_variance = self.quant_conv(self.encoder(pictures)).chunk(2, dim=1)
        return mean, log_variance.clamp(-30, 20)

    @torch.no_grad()
    def code(self, pictures: torch.Tensor) -> torch.Tensor:
        """The likeliest latents, one row a picture."""
        return torch.as_tensor(self(pictures)[0] * self.size.scaling_factor).flatten(1)

    def stored(self) -> dict[str, Any]:
        """What makes it again."""
        return {"size": asdict(self.size), "state": self.state_dict()}

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> "PictureEncoder":
        """The encoder of `stored`."""
        size = stored["size"]
        encoder = cls(EncoderSize(**{**size, "block_out_channels": tuple(size["block_out_channels"])}))
        encoder.load_state_dict(stored["state"])
        return encoder.eval()


def pixels_of(jpeg: bytes, side: int) -> NDArray[np.float32]:
    """A picture deflated to side x side, channels first, in -1..1."""
    small = Image.fromarray(Encoded.open(jpeg).pixels()).convert("RGB").resize((side, side), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1.0


def read_encoder(name: str) -> PictureEncoder:
    """The encoder in a folder, or of a model hub."""
    from safetensors.torch import load_file

    folder = Path(name)
    try:
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS]))
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        known = {key: config[key] for key in EncoderSize.__dataclass_fields__ if key in config}
        size = EncoderSize(**{"scaling_factor": 0.18215, **known, "block_out_channels": config["block_out_channels"]})
        weights = {_renamed(key): value for key, value in load_file(str(folder / WEIGHTS)).items()}
        encoder = PictureEncoder(size)
        encoder.load_state_dict({key: weights[key].reshape(own.shape) for key, own in encoder.state_dict().items()})
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise InputError(
            f"evaluate.swarm.learning.encoder: '{name}' holds no VAE in the layout of sd-vae-ft-mse ({error}); give a "
            f"folder with {CONFIG} and {WEIGHTS}, or '{TINY}'"
        ) from error
    return encoder.eval()


def _renamed(key: str) -> str:
    *path, layer, kind = key.split(".")
    return ".".join([*path, _OLD_NAMES.get(layer, layer), kind]) if "attentions" in path else key


def learn_encoder(
    read: Callable[[int], bytes], count: int, side: int, steps: int, seed: int, batch: int = 8
) -> PictureEncoder:
    """A small VAE after some steps of drawing n pictures again, which `read` gives by number; without its decoder."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = PictureEncoder(EncoderSize())
        layers: list[nn.Module] = []
        for inside, outside in ((encoder.size.latent_channels, 16), (16, 16), (16, 8)):
            layers += [nn.Upsample(scale_factor=2), nn.Conv2d(inside, outside, 3, padding=1), nn.SiLU()]
        decoder = nn.Sequential(*layers, nn.Conv2d(8, 3, 3, padding=1))
        optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=2e-3)
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            chosen = rng.choice(count, min(batch, count), replace=False)
            pixels = torch.from_numpy(np.stack([pixels_of(read(at), side) for at in chosen.tolist()]))
            mean, log_variance = encoder(pixels)
            drawn = decoder(mean + torch.randn_like(mean) * (0.5 * log_variance).exp())
            kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).mean()
            loss = functional.mse_loss(drawn, pixels) + KL_WEIGHT * kl
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return encoder.eval()
