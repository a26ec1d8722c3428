"""Play against the agent: the game itself, and what people reach beside agents on the same pictures."""

import polars as pl

from tasks.review.site.blocks import Block, heading, table, words
from tasks.review.site.page import Source, page
from tasks.reward.metrics import summarize

SHOWN = ("acc@25km", "acc@200km", "acc@750km", "median_km")


@page(
    "play",
    "Play",
    "Agents",
    ("guesses", "predictions", "labels", "snapshots"),
    about="Guess where a picture was taken, say why, and see how the agent went.",
    order=40,
    shown=lambda source: source.version("predictions") >= 0 or source.version("trajectories") >= 0,
)
def play_page(source: Source) -> list[Block]:
    """The game, and the human baseline. Nothing here tells where a picture was taken."""
    return [{"block": "play"}, *_baseline(source), *_players(source)]


def _baseline(source: Source) -> list[Block]:
    """People and every policy on the benchmark pictures that people guessed."""
    held_out = source.read("labels").filter(split="benchmark").select("image_id")
    mine = source.read("guesses").join(held_out, on="image_id", how="semi")
    title = heading("People and agents", "on the benchmark pictures that people guessed")
    if mine.is_empty():
        return [title, words("No benchmark picture was guessed yet.", "muted")]
    newest = source.read("predictions").sort("written_at").unique(["policy", "image_id"], keep="last")
    same = newest.join(mine.select("image_id").unique(), on="image_id", how="semi")
    rows = [_row("people", mine["error_km"])]
    rows += [
        _row(str(name), part["error_km"])
        for (name,), part in same.sort("policy").group_by("policy", maintain_order=True)
    ]
    return [title, table(["who", *SHOWN, "guesses"], rows, ["text", *["text"] * len(SHOWN), "number"])]  # type: ignore[list-item]


def _row(name: str, km: pl.Series) -> list[object]:
    errors_km = km.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    by_name = {metric.name: metric for metric in summarize(errors_km)}
    cells = [
        f"{by_name[name].value:,.0f} km"
        if name.endswith("_km")
        else f"{100 * by_name[name].value:.0f} % ({100 * by_name[name].low:.0f} to {100 * by_name[name].high:.0f})"
        for name in SHOWN
    ]
    return [name, *cells, len(km)]


def _players(source: Source) -> list[Block]:
    rows = source.read("guesses")
    if rows.is_empty():
        return []
    # Against an agent whose answer has no point any guess wins.
    won = pl.col("agent_km").is_null() | (pl.col("error_km") < pl.col("agent_km"))
    by = rows.group_by("author").agg(pl.len(), won.sum(), pl.col("geoscore").mean()).sort("geoscore", descending=True)
    lines = [[name, count, wins, round(score)] for name, count, wins, score in by.iter_rows()]
    columns = ["player", "guesses", "nearer than the agent", "mean GeoScore"]
    return [heading("Players"), table(columns, lines, ["text", "number", "number", "number"])]
