"""The step that fits the election network to the rounds of discussion (eq. 4 and 5); one item, the network."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from schemas.errors import StageRefused
from schemas.extras import require_extras
from schemas.settings.evaluate import EvaluateSettings
from tasks.lake import Lake
from tasks.recipes.smilegeo.rounds import learning_pictures, learns, rounds_identity, swarm_id
from tasks.runtime.runner import Inputs, Kept, Outcome, Rejected, Resources, Row, Stage, WorkerSetup, digest

PHASE = "election"  # training_stage of its rows in `models`
FILE = "election.pt"
VERSION = 1  # raise it when the same rounds and settings make another network
_ITEM = ("id", "snapshot_id", "samples", "samples_digest")


def election_identity(settings: EvaluateSettings) -> dict[str, Any]:
    """The settings that the network depends on."""
    return {**rounds_identity(settings), "learning": settings.swarm.learning.identity()}


def learned_rounds(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """The rounds of this swarm on the pictures to learn from, in the order of their bytes."""
    mine = inputs.frame("swarm_rounds").filter(pl.col("swarm_id") == swarm_id(settings))
    return mine.join(learning_pictures(inputs, settings), on="image_id", how="semi").sort("sha256", "image_id")


def items(inputs: Inputs, settings: EvaluateSettings) -> pl.DataFrame:
    """The network that is to be learned from the rounds as they are."""
    rows = learned_rounds(inputs, settings)
    seen = rows.select("sha256", "election_json", "links_json", "distances_json").rows()
    model_id = digest("election", VERSION, election_identity(settings), seen)
    network = (model_id, inputs.snapshot_id, rows.height, digest("rounds", seen))
    kinds = dict(zip(_ITEM, (pl.String, pl.String, pl.Int64, pl.String), strict=True))
    return pl.DataFrame([network] if learns(settings) else [], schema=kinds, orient="row")


@dataclass(frozen=True)
class WorkerContext:
    """What the worker keeps at hand."""

    lake: Lake
    settings: EvaluateSettings
    rounds: pl.DataFrame


def open_context(settings: EvaluateSettings, setup: WorkerSetup) -> WorkerContext:
    require_extras("evaluate.swarm.election: learned", "train")
    return WorkerContext(setup.lake, settings, setup.shared)


def work(item: Row, context: WorkerContext) -> Outcome:
    """The network's row. A fit that was killed goes on from its last checkpoint."""
    rows, settings, blobs = context.rounds, context.settings, context.lake.blobs
    if rows.is_empty():
        return Rejected("no_samples", {"training_stage": PHASE, "snapshot_id": item["snapshot_id"]})
    key = f"models/{item['id']}"
    blobs.pull(key)
    losses = learn_election(rows, settings, context.lake, blobs.local(key))
    blobs.push(key, last=FILE)
    model = {
        "model_id": item["id"],
        "training_stage": PHASE,
        "parent_id": None,
        "snapshot_id": item["snapshot_id"],
        "recipe": settings.agent_recipe,
        "base": settings.swarm.learning.encoder,
        "samples": item["samples"],
        "samples_digest": item["samples_digest"],
        "steps": len(losses),
        "config_json": json.dumps(election_identity(settings), sort_keys=True),
        "metrics_json": json.dumps({"loss": losses}),
        "checkpoint": key,
    }
    head = {"model_id": item["id"], "training_stage": PHASE, "kind": "step"}
    nothing = dict.fromkeys(("reward", "text", "seconds", "tokens_per_s"))
    steps = [
        {**head, "number": at, "step": at + 1, "loss": loss, **nothing, "figures_json": "{}"}
        for at, loss in enumerate(losses)
    ]
    return Kept({"training_steps": steps, "models": [model]})


def learn_election(rows: pl.DataFrame, settings: EvaluateSettings, lake: Lake, folder: Path) -> list[float]:
    """Write the network of these rounds into the folder; returns the loss of each epoch."""
    import torch

    from tasks.recipes.smilegeo.encoder import TINY, PictureEncoder, learn_encoder, pixels_of, read_encoder
    from tasks.recipes.smilegeo.network import ElectionNetwork, Elector, Targets, fit

    torch.set_num_threads(1)  # two wait for each other at every small matrix, and a large one wants a GPU
    learning = settings.swarm.learning
    losses_file = folder / "losses.json"
    if (folder / FILE).exists() and losses_file.exists():
        return [float(entry) for entry in json.loads(losses_file.read_text(encoding="utf-8"))]
    partial = folder.with_name(f".{folder.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    stored = [(row["sha256"], row["extension"]) for row in rows.iter_rows(named=True)]
    kept = partial / "encoder.pt"
    if learning.encoder != TINY:
        encoder = read_encoder(learning.encoder)
    elif kept.exists():
        encoder = PictureEncoder.restored(torch.load(kept, weights_only=True))
    else:
        encoder = learn_encoder(
            lambda at: lake.images.read(*stored[at]), len(stored), learning.side, learning.encoder_steps, learning.seed
        )
        torch.save(encoder.stored(), kept)
    latents = encoder.size.latent_channels * (learning.side // 8) ** 2
    # Half precision on disk: all latents of a large set do not fit in memory.
    features = np.lib.format.open_memmap(partial / "features.npy", "w+", np.float16, (len(stored), latents))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder.to(device)
    for begin in range(0, len(stored), 8):
        pixels = [pixels_of(lake.images.read(*name), learning.side) for name in stored[begin : begin + 8]]
        features[begin : begin + 8] = encoder.code(torch.from_numpy(np.stack(pixels)).to(device)).cpu().numpy()
    told = [[json.loads(text) for text in rows[name]] for name in ("election_json", "links_json", "distances_json")]
    network = ElectionNetwork(len(settings.swarm.agents), latents, learning.width, learning.seed)
    network, losses = fit(network, features, Targets.of(*told), learning, checkpoint=partial / "fit.pt")
    losses_file.write_text(json.dumps(losses), encoding="utf-8")
    Elector(network, encoder.cpu(), learning.side).save(folder / FILE)
    for file in partial.iterdir():
        file.unlink()
    partial.rmdir()
    return losses


def newest_election(models: pl.DataFrame, settings: EvaluateSettings) -> str:
    """The id of the newest network that was learned of these agents."""
    rows = models.filter((pl.col("training_stage") == PHASE) & (pl.col("recipe") == settings.agent_recipe))
    agents = list(settings.swarm.agents)
    for row in rows.sort("written_at", descending=True).iter_rows(named=True):
        if settings.swarm.network in (None, row["model_id"]) and json.loads(row["config_json"])["agents"] == agents:
            return str(row["model_id"])
    wanted = f" of the id {settings.swarm.network}" if settings.swarm.network else ""
    raise StageRefused(
        f"evaluate.swarm.election is 'learned', and the lake has no election network{wanted} of {', '.join(agents)}: "
        f"learn it first with `geofix train --recipe {settings.agent_recipe}` and the same agents in the same order, "
        "or set evaluate.swarm.election=fixed"
    )


STAGE = Stage(
    name="train.election",
    section="evaluate",
    reads=("swarm_rounds", "labels", "images"),
    writes=("training_steps", "models"),
    items=items,
    work=work,
    open=open_context,
    share=learned_rounds,
    resources=Resources(cpus=2, gpu_where_any=True, workers=1, chunk=1),
    identity=election_identity,
    snapshot=True,
    keeps_history=True,
    unhashed=("snapshot_id",),
)
