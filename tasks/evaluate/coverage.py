"""How much of every published benchmark could be answered, and why the rest could not."""

from collections import Counter
from dataclasses import dataclass

import polars as pl

from tasks.lake import Lake


@dataclass(frozen=True)
class Coverage:
    """One ingested benchmark: the rows of its table, those that are labelled, and the others by reason."""

    source: str
    rows: int
    labelled: int
    left_out: Counter[str]

    def __str__(self) -> str:
        others = ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.most_common())
        text = f"{self.source}: {self.labelled:,} of {self.rows:,} pictures"
        return f"{text} (not: {others})" if others else text


def benchmark_coverage(lake: Lake) -> list[Coverage]:
    """Every published benchmark of a lake as it is now, by name."""
    images = lake.read("images", columns=["image_id", "source", "purpose"]).filter(pl.col("purpose") == "benchmark")
    rejects = lake.read("rejects", columns=["stage", "item_id", "reason"])
    labelled = set(lake.read("labels", columns=["image_id"])["image_id"])
    curated = dict(rejects.filter(pl.col("stage") == "curate.labels").select("item_id", "reason").iter_rows())
    refused = rejects.filter(pl.col("stage") == "ingest")
    coverages = []
    for (source,), rows in images.group_by("source", maintain_order=True):
        # The ids of a dataset's rows begin with its name, followed by what they are told by.
        mine = refused.filter(pl.col("item_id").str.contains(rf"^{pl.escape_regex(str(source))}[:/]"))
        ids = rows["image_id"].to_list()
        left_out = Counter(mine["reason"].to_list())
        left_out.update(curated.get(image_id, "not_curated_yet") for image_id in ids if image_id not in labelled)
        coverages.append(Coverage(str(source), len(ids) + mine.height, len(labelled.intersection(ids)), left_out))
    return sorted(coverages, key=lambda coverage: coverage.source)
