"""Which labelled pictures a stage works on."""

import polars as pl

from tasks.runtime.runner import Inputs


def labelled_pictures(inputs: Inputs, split: str, max_images: int | None = None) -> pl.DataFrame:
    """The pictures of a split with their truth: image_id, sha256, extension, lat, lon, in the order of their bytes.

    Order and choice (`max_images`) follow from the pictures' bytes alone: ids are another lake's secret, bytes are the
    same everywhere. So the choice is the same in every run of every lake, and stays when other pictures come.
    """
    pictures = inputs.frame("images").select("image_id", "extension")
    labels = inputs.frame("labels").filter(pl.col("split") == split).select("image_id", "sha256", "lat", "lon")
    chosen = labels.join(pictures, on="image_id", how="inner")
    if max_images is not None:
        chosen = chosen.sort("sha256", "image_id").head(max_images)
    return chosen.select("image_id", "sha256", "extension", "lat", "lon").sort("sha256", "image_id")
