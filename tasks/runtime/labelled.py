"""Which labelled pictures a stage works on."""

from dataclasses import dataclass

import polars as pl

from schemas.tables import TABLES
from tasks.runtime.runner import Inputs


@dataclass(frozen=True)
class PictureFilter:
    """Which labelled pictures a recipe answers and is trained on."""

    kinds: tuple[str, ...] = ("panorama", "photo")
    min_pixels: int = 0  # of those taken on the ground; scenes have the size that collection asks for

    def apply(self, images: pl.DataFrame) -> pl.DataFrame:
        """The rows of `images` that pass."""
        is_large = (pl.col("width") * pl.col("height") >= self.min_pixels) | (pl.col("kind") == "satellite")
        return images.filter(pl.col("kind").is_in(self.kinds), is_large.fill_null(True))


ON_THE_GROUND = PictureFilter()


def labelled_pictures(
    inputs: Inputs, split: str, max_images: int | None = None, wanted: PictureFilter = ON_THE_GROUND
) -> pl.DataFrame:
    """The pictures of a split with their truth: image_id, sha256, extension, lat, lon, in the order of their bytes.

    Order and choice (`max_images`) follow from the pictures' bytes alone: ids are another lake's secret, bytes are the
    same everywhere. So the choice is the same in every run of every lake, and stays when other pictures come.
    """
    pictures = wanted.apply(inputs.frame("images")).select("image_id", "extension")
    labels = inputs.frame("labels").filter(pl.col("split") == split).select("image_id", "sha256", "lat", "lon")
    chosen = labels.join(pictures, on="image_id", how="inner")
    if max_images is not None:
        chosen = chosen.sort("sha256", "image_id").head(max_images)
    return chosen.select("image_id", "sha256", "extension", "lat", "lon").sort("sha256", "image_id")


def empty_rows(table: str) -> pl.DataFrame:
    """No rows of a table, as a `ColumnStage` returns them: its own columns in their types, and `id`."""
    contract = TABLES[table]
    frame = pl.DataFrame(schema=pl.Schema(contract.schema))
    return frame.select(pl.Series("id", [], dtype=pl.String), *contract.columns)
