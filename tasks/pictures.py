"""Which labelled pictures a stage works on."""

import polars as pl

from tasks.frame import Inputs, digest


def labelled_pictures(inputs: Inputs, split: str, max_images: int | None = None) -> pl.DataFrame:
    """The pictures of a split with their truth: image_id, sha256, extension, lat, lon, in the order of their ids.

    With `max_images` the choice follows from the ids alone, so it is the same in every run and stays when others come.
    """
    pictures = inputs.frame("images").select("image_id", "extension")
    labels = inputs.frame("labels").filter(pl.col("split") == split).select("image_id", "sha256", "lat", "lon")
    chosen = labels.join(pictures, on="image_id", how="inner")
    if max_images is not None:
        # By digest: neighbouring ids are neighbouring places.
        order = pl.col("image_id").map_elements(digest, return_dtype=pl.String)
        chosen = chosen.sort(order).head(max_images)
    return chosen.select("image_id", "sha256", "extension", "lat", "lon").sort("image_id")
