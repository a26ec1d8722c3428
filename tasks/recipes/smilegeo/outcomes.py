"""Learn a swarm's election and links from the answers of its agents that the lake holds (smileGeo eq. 2-5)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from schemas.errors import InputError
from tasks.imaging.decode import Encoded
from tasks.lake import Lake

SWARM, VOTE, DEBATE = "swarm", "swarm vote", "swarm debate"  # policies of its evaluations


def agent_alone(agent: str) -> str:
    """The policy of one agent of the swarm alone."""
    return f"swarm agent {agent}"


@dataclass(frozen=True)
class Learned:
    """What was learned from, and how well it was fitted."""

    pictures: int
    first_loss: float
    last_loss: float
    right: dict[str, float]  # share of pictures that each agent alone had right


def learn(
    lake: Lake, agents: Sequence[str], split: str, same_km: float, out: Path, steps: int = 300, rate: float = 1e-4
) -> Learned:
    """Fit the election network to which agents were right on the pictures of a split, and write it to `out`.

    The agents' answers are those of `geofix swarm` on that split. Truth enters here, and here alone, as right or wrong.
    """
    from tasks.recipes.smilegeo.learning import ElectionNetwork, Estimate, features_of, save, train

    said = _newest(lake.read("predictions"), [agent_alone(agent) for agent in agents])
    labels = lake.read("labels", columns=["image_id", "split", "sha256"]).filter(pl.col("split") == split)
    images = lake.read("images", columns=["image_id", "extension"])
    said = said.join(labels, on="image_id").join(images, on="image_id")
    whole = said.group_by("image_id").agg(pl.col("policy").n_unique().alias("n")).filter(pl.col("n") == len(agents))
    said = said.join(whole, on="image_id", how="semi").sort("sha256", "image_id", "policy")
    if said.is_empty():
        raise InputError(
            f"the lake has no answers of {', '.join(agents)} to pictures of split '{split}': ask them first, with "
            f"`geofix swarm {' '.join(agents)} --set evaluate.split={split}`"
        )
    reviews = _reviews(lake)
    estimates, features = [], []
    for (image_id,), rows in said.group_by("image_id", maintain_order=True):
        near = dict(zip(rows["policy"], (rows["error_km"] <= same_km).fill_null(False), strict=True))
        estimate = Estimate(len(agents))
        right = {number: bool(near[agent_alone(agent)]) for number, agent in enumerate(agents)}
        estimate.observe(right, reviews.get(str(image_id), {}))
        estimates.append(estimate)
        features.append(features_of(Encoded.open(lake.images.read(rows["sha256"][0], rows["extension"][0])).pixels()))
    network = ElectionNetwork(len(agents), len(features[0]))
    losses = train(network, np.stack(features), estimates, steps=steps, rate=rate)
    save(network, out)
    shares = {agent: float(np.mean([one.election[number] for one in estimates])) for number, agent in enumerate(agents)}
    return Learned(len(estimates), losses[0], losses[-1], shares)


def _newest(predictions: pl.DataFrame, policies: Sequence[str]) -> pl.DataFrame:
    mine = predictions.filter(pl.col("policy").is_in(policies)).sort("written_at")
    return mine.unique(["policy", "image_id"], keep="last").select("policy", "image_id", "error_km")


def _reviews(lake: Lake) -> dict[str, dict[int, list[int]]]:
    """Who reviewed whose answer to each picture, where the swarm has discussed it."""
    rows = lake.read("deliberations").filter((pl.col("policy") == SWARM) & pl.col("answers_json").is_not_null())
    found = {}
    for image_id, text in rows.select("image_id", "answers_json").iter_rows():
        found[image_id] = {int(agent): reviewers for agent, reviewers in json.loads(text)["reviews"].items()}
    return found
