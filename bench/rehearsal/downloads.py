"""Stand-ins for the published sets, with their files' names and columns: few rows, of the offline Earth."""

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.offline.services.image_host import ImageHost
from infra.offline.world import ImageRecord, World


def write_downloads(folder: Path, world_size: int) -> None:
    """Every table and picture that docs/reproduce.md names, below a folder."""
    host = ImageHost(World(size=world_size))
    photos = _photos(host.world)

    def write(below: str, table: str, columns: str, count: int, file: str, images: str = "images") -> None:
        """A table of so many rows, whose pictures are named by a column, in the folder of images."""
        (folder / below / images).mkdir(parents=True, exist_ok=True)
        with (folder / below / table).open("w", newline="") as out:
            writer = csv.DictWriter(out, columns.split(), extrasaction="ignore")
            writer.writeheader()
            for number, record in enumerate(itertools.islice(photos, count)):
                row = _row(host.world, record, number)
                writer.writerow(row)
                name = str(row[file]).removesuffix(".jpg") + ".jpg"
                (folder / below / images / name).write_bytes(host.jpeg(record, "original"))

    write("mp16-pro", "MP16_Pro_filtered.csv", "IMG_ID AUTHOR LAT LON city county state country", 40, "IMG_ID")
    for name in ("im2gps3k", "yfcc4k"):
        write(name, f"{name}_places365.csv", "IMG_ID AUTHOR LAT LON S3_Label S16_Label S365_Label", 3, "IMG_ID")
    street = "id latitude longitude country creator_username quadtree_10_1000 unique_city"
    write("osv5m", "train.csv", street, 10, "id", "images/train")
    write("osv5m", "test.csv", street, 4, "id", "images/test")
    write("geocomp", "tuxun_combined.csv", "panoID nation lat lng", 5, "panoID")
    write("mapbench", "pois.csv", "id path lat lng poi city licence creator", 16, "path")
    write("imageo-2", "dataset2.csv", "image_id gmap_id address latitude longitude", 6, "image_id")
    for below, table, count in (("geovista-bench", "geobench.csv", 3), ("geoglobe", "geoglobe.csv", 12)):
        write(below, table, "id path lat lng kind licence creator", count, "path")


def _photos(world: World) -> Iterator[ImageRecord]:
    """Clear photos of places far apart."""
    for index in range(0, world.size, 97):
        photo = next((one for one in world.images(index) if not one.is_pano and one.condition == "clear"), None)
        if photo:
            yield photo


def _row(world: World, record: ImageRecord, number: int) -> dict[str, Any]:
    """What the sets say of a photo, under all their columns' names."""
    place, name = world.place(record.place), record.image_id
    return {
        **dict.fromkeys(("id", "panoID", "image_id", "gmap_id", "poi", "quadtree_10_1000"), name),
        **{"IMG_ID": f"{name[:2]}_{name[2:4]}_{name}.jpg", "path": f"{name}.jpg"},
        **dict.fromkeys(("LAT", "lat", "latitude"), f"{record.lat:.6f}"),
        **dict.fromkeys(("LON", "lng", "longitude"), f"{record.lon:.6f}"),
        **dict.fromkeys(("AUTHOR", "creator", "creator_username"), record.creator),
        **dict.fromkeys(("unique_city", "address"), place.local_name),
        **{"city": f"city {number % 3}", "country": place.country, "nation": place.country},
        **{"licence": "CC BY 4.0", "kind": "photo", "S3_Label": 1, "S16_Label": 3, "S365_Label": 7},
    }
