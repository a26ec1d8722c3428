"""The network that learns whom to elect and who reviews whom, by attention over agents (eq. 4 and 5).

Eq. 5's first term is the distance of the agents' answers. Agents are not trained, so it can only change who answers: it
is taken in expectation over the election, sum of D_i Lst_i over the agents that gave an answer, with D as a share of
half the Earth's circumference. The paper reports the mean of the last 100 epochs; here the weights are their mean.
"""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim.swa_utils import AveragedModel

from schemas.errors import InputError
from schemas.settings.evaluate import SwarmLearningSettings
from tasks.recipes.smilegeo.encoder import PictureEncoder, pixels_of
from tasks.recipes.smilegeo.swarm import Matrix

HALF_EARTH_KM = 20_015.0


class ElectionNetwork(nn.Module):
    """Eq. 4: attention over agents' embeddings plus a picture's features gives links A and election Lst."""

    def __init__(self, agents: int, features: int, width: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.shape = (agents, features, width)
        # Of unit variance, so that Fea Fea^T differs between agents: from a thousandth of it softmax stays flat.
        self.embedding = nn.Parameter(torch.randn(agents, width, generator=generator))
        self.align = nn.Linear(features, width)  # a picture's latents to the width of the embeddings
        self.linear = nn.Linear(width, width)
        self.weight = nn.Parameter(torch.randn(width, width, generator=generator) / width**0.5)
        self.elect = nn.Linear(agents * width, agents)
        for layer in (self.align, self.linear, self.elect):
            bound = layer.in_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, picture: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(Lst of shape batch x agents, A of shape batch x agents x agents) of pictures' features."""
        fea = self.linear(self.embedding[None] + self.align(picture)[:, None, :])
        scores = fea @ fea.transpose(1, 2) / fea.shape[-1] ** 0.5
        own = torch.eye(fea.shape[1], dtype=torch.bool, device=fea.device)
        links = torch.softmax(scores.masked_fill(own, float("-inf")), dim=-1)  # A_ii = 0: none reviews itself
        hidden = nn.functional.leaky_relu(links @ fea @ self.weight)
        return torch.sigmoid(self.elect(hidden.flatten(1))), links


@dataclass(frozen=True)
class Targets:
    """What pictures' discussions say, one row a picture."""

    election: NDArray[np.float32]  # pictures x agents
    links: NDArray[np.float32]  # pictures x agents x agents, rows sum to 1 as in eq. 1
    distances: NDArray[np.float32]  # pictures x agents, share of HALF_EARTH_KM; 0 where an agent gave no answer

    @classmethod
    def of(
        cls, election: Sequence[Sequence[float]], links: Sequence[Any], km: Sequence[Sequence[float | None]]
    ) -> "Targets":
        """From what the table of rounds holds."""
        raw = np.asarray(links, dtype=np.float64)
        rows = raw / np.maximum(raw.sum(axis=2, keepdims=True), 1e-9)
        away = [[0.0 if error_km is None else min(1.0, error_km / HALF_EARTH_KM) for error_km in row] for row in km]
        return cls(np.asarray(election, np.float32), rows.astype(np.float32), np.asarray(away, np.float32))


def election_loss(
    elected: torch.Tensor,
    linked: torch.Tensor,
    election: torch.Tensor,
    links: torch.Tensor,
    distances: torch.Tensor,
    distance_weight: float = 1.0,
) -> torch.Tensor:
    """Eq. 5, the mean over pictures."""
    distance = (distances * elected).sum(dim=1).mean()
    fit = nn.functional.mse_loss(elected, election) + nn.functional.mse_loss(linked, links)
    return distance_weight * distance + fit


def fit(
    network: ElectionNetwork,
    features: NDArray[np.float32],
    targets: Targets,
    settings: SwarmLearningSettings,
    report: Callable[[int, float], None] = lambda epoch, loss: None,
    checkpoint: Path | None = None,
    save_epochs: int = 50,
) -> tuple[ElectionNetwork, list[float]]:
    """The network after all epochs of Adam, averaged over the last; and the mean loss of each epoch.

    With `checkpoint` a fit that was killed goes on from the last epoch that was saved there.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = network.to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    averaged = AveragedModel(network)
    losses: list[float] = []
    if checkpoint is not None and checkpoint.exists():
        stored = torch.load(checkpoint, map_location=device, weights_only=True)
        network.load_state_dict(stored["network"])
        averaged.load_state_dict(stored["averaged"])
        optimizer.load_state_dict(stored["optimizer"])
        losses = stored["losses"]
    rows = len(features)
    for epoch in range(len(losses), settings.epochs):
        order = np.random.default_rng((settings.seed, epoch)).permutation(rows)
        total = 0.0
        for begin in range(0, rows, settings.batch_size):
            chosen = np.sort(order[begin : begin + settings.batch_size])
            x, election, links, distances = (
                torch.from_numpy(np.asarray(part[chosen], np.float32)).to(device)
                for part in (features, targets.election, targets.links, targets.distances)
            )
            elected, linked = network(x)
            loss = election_loss(elected, linked, election, links, distances, settings.distance_weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(chosen)
        losses.append(total / rows)
        report(epoch, losses[-1])
        if epoch >= settings.epochs - settings.average_epochs:
            averaged.update_parameters(network)
        if checkpoint is not None and (epoch + 1) % save_epochs == 0:
            state = {"network": network.state_dict(), "averaged": averaged.state_dict()}
            _write({**state, "optimizer": optimizer.state_dict(), "losses": losses}, checkpoint)
    trained = averaged.module.cpu()
    assert isinstance(trained, ElectionNetwork)
    return trained, losses


@dataclass(frozen=True)
class Elector:
    """A learned network with the encoder of its pictures."""

    network: ElectionNetwork
    encoder: PictureEncoder
    side: int

    def save(self, path: Path) -> None:
        """Write it; a reader never sees half a file."""
        network = {"shape": self.network.shape, "state": self.network.state_dict()}
        _write({"side": self.side, "network": network, "encoder": self.encoder.stored()}, path)

    @classmethod
    def load(cls, path: Path) -> "Elector":
        """What was saved, or `InputError` where there is nothing of the kind."""
        try:
            stored: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            network = ElectionNetwork(*stored["network"]["shape"])
            network.load_state_dict(stored["network"]["state"])
            return cls(network.eval(), PictureEncoder.restored(stored["encoder"]), stored["side"])
        except (OSError, RuntimeError, KeyError, pickle.UnpicklingError) as error:
            raise InputError(f"evaluate.swarm.network: {path} holds no election network ({error})") from error

    @torch.no_grad()
    def predict(self, jpeg: bytes) -> tuple[list[float], Matrix]:
        """Election and links that it expects for a picture."""
        pixels = torch.from_numpy(pixels_of(jpeg, self.side)[None])
        election, links = self.network(self.encoder.code(pixels))
        return [float(share) for share in election[0]], links[0].numpy().astype(np.float64)


def _write(value: dict[str, Any], path: Path) -> None:
    part = path.with_name(f".{path.name}.part")
    torch.save(value, part)
    part.replace(path)
