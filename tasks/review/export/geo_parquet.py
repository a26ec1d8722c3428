"""One GeoParquet file: a point and the facts of each picture, without pixels, for maps and spatial joins."""

from pathlib import Path

from tasks.lake import Lake
from tasks.review.export.rows import Published

NAME = "pictures.parquet"


def write(published: Published, lake: Lake, folder: Path) -> None:
    """`pictures.parquet`, with points in WGS 84."""
    import geopandas

    rows = published.rows.to_pandas()
    points = geopandas.points_from_xy(rows["lon"], rows["lat"])
    geopandas.GeoDataFrame(rows, geometry=points, crs="EPSG:4326").to_parquet(folder / NAME, index=False)
