"""Play against the agent: a person guesses where a picture was taken, says why, and then sees how the agent went.

Pictures that an agent answered in an evaluation make the human baseline; training pictures that agents wrote
trajectories on give notes that synthesis may use. A round is named by a keyed digest of player and picture: before the
guess is stored, nothing that leaves the server leads to the picture's id or position.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.errors import InputError, NotFound
from schemas.settings.review import ReviewSettings
from tasks.geo.distance import distance_km
from tasks.lake import Commit, Lake
from tasks.review.marks import Licence, Note, store_notes
from tasks.review.site.page import Source
from tasks.review.site.transcript import conversation
from tasks.review.site.words import place_name
from tasks.reward.metrics import geoscore
from tasks.runtime.items.identity import code_version, digest, new_run_id
from tasks.runtime.labelled import ON_THE_GROUND

STAGE_NAME = "review.play"
WHY_CHARS = 4000
_PLAYER = Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f]*\S[^\x00-\x1f]*$")


class Guess(BaseModel):
    """One guess, as the browser sends it."""

    model_config = ConfigDict(extra="ignore")

    round: str = Field(pattern="^[0-9a-f]{24}$")
    player: str = _PLAYER
    lat: float = Field(ge=-90, le=90)
    lon: float = Field(ge=-180, le=180)
    why: str = Field(min_length=3, max_length=WHY_CHARS)
    licence: Licence
    agreed: bool = Field(description="that guess and text are stored with the name, under the licence")
    guessed_at: datetime


@dataclass(frozen=True)
class Game:
    """The pictures of a snapshot that can be played, and what agents did with them."""

    lake: Lake
    snapshot_id: str
    pictures: pl.DataFrame  # image_id, sha256, extension, kind, split, true_lat, true_lon, title, attribution, ...
    ways: dict[str, dict[str, Any]]  # image_id -> row of predictions or trajectories

    @classmethod
    def of(cls, lake: Lake, snapshot: dict[str, Any]) -> "Game":
        """As the tables are now."""
        source = Source(lake, snapshot, ReviewSettings())
        labels = source.read("labels").filter(pl.col("split").is_in(["train", "benchmark"]))
        labels = labels.select("image_id", "split", "country", "region", "city", true_lat="lat", true_lon="lon")
        images = ON_THE_GROUND.apply(source.read("images")).select(
            "image_id", "sha256", "extension", "kind", "width", "height", "attribution"
        )
        told = {
            "train": source.read("trajectories").filter(pl.col("verdict") == "kept").sort("written_at"),
            "benchmark": source.read("predictions").sort("written_at"),
        }
        pictures = labels.join(images, on="image_id").sort("image_id")
        split_of = dict(pictures.select("image_id", "split").iter_rows())
        ways = {
            row["image_id"]: row
            for split, rows in told.items()
            for row in rows.to_dicts()  # the newest stands
            if split_of.get(row["image_id"]) == split
        }
        return cls(lake, str(snapshot["snapshot_id"]), pictures.filter(pl.col("image_id").is_in(list(ways))), ways)

    def round_of(self, player: str, image_id: str) -> str:
        """The name of a player's round with a picture; it leads to neither without this lake."""
        return self.lake.name("play", player, image_id)

    def picture_of(self, player: str, round_: str) -> dict[str, Any]:
        """The picture of a round."""
        for row in self.pictures.iter_rows(named=True):
            if self.round_of(player, row["image_id"]) == round_:
                return row
        raise NotFound("there is no such round; load the page again")

    def next_round(self, player: str) -> dict[str, Any]:
        """A round that this player has not played, of the two kinds in turn, in an order of the player's own."""
        done = set(_guesses(self.lake).filter(author=player)["image_id"])
        rows = [row for row in self.pictures.iter_rows(named=True) if row["image_id"] not in done]
        told = {"done": len(done), "left": len(rows)}
        if not rows:
            return {**told, "round": None}
        turn = "benchmark" if len(done) % 2 == 0 else "train"
        rows.sort(key=lambda row: (row["split"] != turn, self.round_of(player, row["image_id"])))
        shape = {name: rows[0][name] for name in ("kind", "width", "height")}
        return {**told, **shape, "round": self.round_of(player, rows[0]["image_id"])}

    def store(self, guess: Guess) -> dict[str, Any]:
        """Store a guess, unless this player's first one on the picture stands already; then the truth is told."""
        row = self.picture_of(guess.player, guess.round)
        way = self.ways[row["image_id"]]
        guess_id = digest("guess", row["image_id"], guess.player)
        known = _guesses(self.lake).filter(guess_id=guess_id).to_dicts()
        if not known:
            known = [self._stored(guess_id, guess, row, way)]
        mine = known[0]
        title = place_name(row["city"], row["region"], row["country"])
        return {
            **{"image": row["image_id"], "title": title, "credit": row["attribution"], "split": row["split"]},
            **{"truth": [row["true_lat"], row["true_lon"]], "guess": [mine["lat"], mine["lon"]]},
            **{"error_km": mine["error_km"], "score": round(mine["geoscore"]), "agent_km": way["error_km"]},
            "agent_score": 0 if way["error_km"] is None else round(float(geoscore(way["error_km"]))),
            "policy": _policy(way),
            "agent": conversation({**row, **way}, (way.get("view_width"), way.get("view_height"))),
        }

    def _stored(self, guess_id: str, guess: Guess, row: dict[str, Any], way: dict[str, Any]) -> dict[str, Any]:
        error_km = float(distance_km(guess.lat, guess.lon, row["true_lat"], row["true_lon"]))
        at = guess.guessed_at if guess.guessed_at.tzinfo else guess.guessed_at.replace(tzinfo=UTC)
        commit = Commit(new_run_id("play"), 1, stage=STAGE_NAME, code_version=code_version())
        made = {
            **{"guess_id": guess_id, "image_id": row["image_id"], "sha256": row["sha256"], "why": guess.why.strip()},
            **{"snapshot_id": self.snapshot_id, "lat": guess.lat, "lon": guess.lon, "error_km": error_km},
            **{"geoscore": float(geoscore(error_km)), "author": guess.player, "licence": guess.licence},
            **{"policy": _policy(way), "agent_km": way["error_km"], "guessed_at": at},
            **{"stage": STAGE_NAME, "item_id": guess_id, "made_from": guess_id, "run_id": commit.run_id},
            "written_at": datetime.now(UTC),
        }
        note = Note(image_id=row["image_id"], sha256=row["sha256"], notes=guess.why, licence=guess.licence, noted_at=at)
        # The note first: a guess that is there is never stored again, and would lack it.
        store_notes(self.lake, [note], {row["image_id"]: (row["sha256"], "")}, self.snapshot_id, guess.player)
        self.lake.upsert("guesses", [made], commit)
        return made


def read_guess(text: bytes) -> Guess:
    """The guess, or an InputError that names the field."""
    try:
        guess = Guess.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"guess: {'.'.join(map(str, first['loc'])) or 'the request'}: {first['msg']}") from error
    if not guess.agreed:
        raise InputError("guess: agreed: guesses are stored only from who agrees to their name and licence")
    return guess


def _policy(way: dict[str, Any]) -> str:
    return str(way.get("policy") or f"trajectory of {way['recipe']}")


def _guesses(lake: Lake) -> pl.DataFrame:
    return lake.read("guesses", columns=["guess_id", "image_id", "author", "lat", "lon", "error_km", "geoscore"])
