"""What smileGeo learns from outcomes: whom to elect and who reviews whom, by attention over agents (eq. 2-5).

As printed, eq. 3 strengthens a link by (tt + 1) / (2 tt) after a right answer and by (2 tt - 1) / (2 tt) after a wrong
one. From tt = 2 on the first factor is below 1, so a right answer would weaken the link, and from tt = 3 on more than a
wrong one: against the text, which says that links of right answers are strengthened. `link_factor` does what the text
says; `printed=True` gives the printed form.
"""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from schemas.errors import InputError
from tasks.imaging.decode import Encoded

Matrix = NDArray[np.float64]
WIDTH = 1024
RATE = 1e-5


def link_factor(right: bool, streak: int, printed: bool = False) -> float:
    """What a link is multiplied by; `streak` is tt, the number of right answers in a row, 1 at least."""
    tt = max(1, streak)
    if printed:
        return (tt + 1) / (2 * tt) if right else (2 * tt - 1) / (2 * tt)
    # Right answers strengthen by as much as printed wrong ones weaken, less so the longer the streak.
    return (2 * tt + 1) / (2 * tt) if right else (2 * tt - 1) / (2 * tt)


@dataclass
class Estimate:
    """Election target and links of one picture, updated over the rounds L of its discussion."""

    agents: int
    printed: bool = False
    election: list[float] = field(init=False)
    links: Matrix = field(init=False)
    streaks: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.election = [0.5] * self.agents
        self.links = np.ones((self.agents, self.agents)) - np.eye(self.agents)
        self.streaks = [0] * self.agents

    def observe(self, right: Mapping[int, bool], reviews: Mapping[int, Sequence[int]]) -> None:
        """Take a round's outcome: which answerers were right, eq. 2, and who had reviewed them, eq. 3."""
        for agent, was_right in right.items():
            self.streaks[agent] = self.streaks[agent] + 1 if was_right else 0
            self.election[agent] = 1.0 if was_right else 0.0
            for reviewer in reviews.get(agent, ()):
                self.links[agent, reviewer] *= link_factor(was_right, self.streaks[agent] or 1, self.printed)


class ElectionNetwork(nn.Module):
    """Eq. 4: attention over agents' embeddings plus a picture's features gives links A and election Lst."""

    def __init__(self, agents: int, features: int, width: int = WIDTH, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.shape = (agents, features, width)
        self.embedding = nn.Parameter(torch.randn(agents, width, generator=generator) / width**0.5)
        self.encode = nn.Linear(features, width)
        self.linear = nn.Linear(width, width)
        self.weight = nn.Parameter(torch.randn(width, width, generator=generator) / width**0.5)
        self.elect = nn.Linear(agents * width, agents)
        for layer in (self.encode, self.linear, self.elect):
            bound = layer.in_features**-0.5
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, picture: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(Lst of shape batch x agents, A of shape batch x agents x agents) of pictures' features."""
        fea = self.linear(self.embedding[None] + self.encode(picture)[:, None, :])
        scores = fea @ fea.transpose(1, 2) / fea.shape[-1] ** 0.5
        own = torch.eye(fea.shape[1], dtype=torch.bool)
        links = torch.softmax(scores.masked_fill(own, float("-inf")), dim=-1)  # none reviews itself
        hidden = nn.functional.leaky_relu(links @ fea @ self.weight)
        return torch.sigmoid(self.elect(hidden.flatten(1))), links


def features_of(pixels: NDArray[np.uint8], side: int = 16) -> NDArray[np.float32]:
    """A picture as a small vector: means of a side x side grid, per channel, in -1..1; a VAE's code may replace it."""
    height, width = pixels.shape[0] // side * side, pixels.shape[1] // side * side
    cut = pixels[:height, :width, :3].astype(np.float32)
    grid = cut.reshape(side, height // side, side, width // side, 3).mean(axis=(1, 3))
    return np.asarray(grid / 127.5 - 1.0, dtype=np.float32).ravel()


def train(
    network: ElectionNetwork,
    pictures: NDArray[np.float32],
    estimates: Sequence[Estimate],
    steps: int = 200,
    rate: float = RATE,
) -> list[float]:
    """Fit the network to the estimates of outcomes by MSE of election and links, eq. 5; the loss of each step."""
    inputs = torch.from_numpy(pictures)
    election = torch.tensor([one.election for one in estimates], dtype=torch.float32)
    raw = np.stack([one.links / np.maximum(one.links.sum(axis=1, keepdims=True), 1e-9) for one in estimates])
    links = torch.tensor(raw, dtype=torch.float32)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    losses: list[float] = []
    for _ in range(steps):
        optimizer.zero_grad()
        said, linked = network(inputs)
        loss = nn.functional.mse_loss(said, election) + nn.functional.mse_loss(linked, links)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def save(network: ElectionNetwork, path: Path) -> None:
    """Write the network; a reader never sees half a file."""
    part = path.with_name(f".{path.name}.part")
    torch.save({"shape": network.shape, "state": network.state_dict()}, part)
    part.replace(path)


def load(path: Path) -> ElectionNetwork:
    """The network as saved."""
    stored: dict[str, Any] = torch.load(path, weights_only=True)
    network = ElectionNetwork(*stored["shape"])
    network.load_state_dict(stored["state"])
    return network


def load_for(path: str | Path, agents: int) -> ElectionNetwork:
    """The network as saved, or `InputError` if there is none or it knows another number of agents."""
    try:
        network = load(Path(path))
    except (OSError, RuntimeError, KeyError, pickle.UnpicklingError) as error:
        raise InputError(f"evaluate.swarm.network: {path} holds no election network ({error})") from error
    if network.shape[0] != agents:
        raise InputError(
            f"evaluate.swarm.network: {path} was learned with {network.shape[0]} agents, and evaluate.swarm.agents "
            f"names {agents}: learn it again, or name the same agents in the same order"
        )
    return network


def predict(network: ElectionNetwork, jpeg: bytes) -> tuple[list[float], Matrix]:
    """Election and links the network expects for a picture."""
    pixels = Encoded.open(jpeg).pixels()
    side = round((network.shape[1] / 3) ** 0.5)
    with torch.no_grad():
        election, links = network(torch.from_numpy(features_of(pixels, side)[None]))
    return [float(one) for one in election[0]], links[0].numpy().astype(np.float64)
