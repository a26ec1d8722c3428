"""Paints an image of the world from its place's attributes: NumPy and Pillow only, the same bytes for the same seed."""

import io
from functools import lru_cache

import numpy as np
from PIL import Image, ImageChops, ImageFilter

from infra.offline.place import Place
from infra.offline.render.backdrop import Road, paint_ground, paint_hills, paint_sky
from infra.offline.render.canvas import Camera, Canvas
from infra.offline.render.signs import BoardWatch, SeenSign
from infra.offline.render.street import Street
from infra.offline.render.things import draw_tree
from infra.offline.seeded_random import generator
from infra.offline.world import ImageRecord, World, camera_along_m, photo_yaw_deg

JPEG_QUALITY = 88
_TILE = 512


def render_jpeg(world: World, record: ImageRecord) -> bytes:
    """The picture of an image as JPEG bytes; an exact duplicate gives its source's bytes."""
    if record.condition == "exact_duplicate":
        record = world.images(record.place)[record.painted_as]
    return encode(paint(world, record))


def encode(image: Image.Image, quality: int = JPEG_QUALITY) -> bytes:
    """JPEG bytes without any metadata."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
    return buffer.getvalue()


def paint(world: World, record: ImageRecord, signs: list[SeenSign] | None = None, *, text: bool = True) -> Image.Image:
    """The picture of an image. `signs` is filled with the boards that can be seen in it; `text=False` leaves them
    without a word."""
    place = world.place(record.place)
    road = Road(place, generator(place.paint_seed, "road"))
    camera = camera_of(world, place, road, record)
    image = paint_sky(place, camera, generator(place.paint_seed, "sky"))
    canvas = Canvas(image, camera)
    paint_hills(canvas, place, generator(place.paint_seed, "hills"))
    # A near-duplicate shares everything with the picture before it, its darkness too.
    source = world.images(record.place)[record.painted_as]
    condition = source.condition
    empty = condition == "no_clue"
    paint_ground(image, place, None if empty else road, camera, generator(place.paint_seed, "ground"))
    if empty:
        _open_country(canvas, place, record.painted_as)
    else:
        watch = None if signs is None else BoardWatch(image)
        Street(place, road, canvas, record.painted_as, condition == "landmark", watch, text).draw()
        if signs is not None and watch is not None:
            signs += watch.seen()
    return _finish(image, source.blur, source.light)


def camera_of(world: World, place: Place, road: Road, record: ImageRecord) -> Camera:
    """The camera that took an image."""
    along_m = camera_along_m(record.slot, record.condition)
    if record.is_pano:
        return Camera(record.width, record.height, road.camera_x, 2.4, along_m)
    yaw = photo_yaw_deg(world.seed, place, record.painted_as)
    return Camera(record.width, record.height, road.camera_x, 1.6, along_m, yaw, fov_deg=72.0, horizon=0.56)


def _open_country(canvas: Canvas, place: Place, slot: int) -> None:
    """Nothing to localize by: ground and a few trees."""
    rng = generator(place.paint_seed, "open", slot)
    spots = sorted(
        ((float(rng.normal(0, 45)), canvas.camera.z + float(rng.normal(0, 60))) for _ in range(9)),
        key=lambda s: -abs(s[1]),
    )
    for x, z in spots:
        if abs(x) + abs(z - canvas.camera.z) > 12:
            draw_tree(canvas, place.climate, x, z, float(rng.uniform(4, 9)), rng)


def _finish(image: Image.Image, blur: float, light: float) -> Image.Image:
    """What the camera adds: soft edges, grain, and for some pictures blur or darkness."""
    if blur * image.width > 0.3:
        image = image.filter(ImageFilter.BoxBlur(image.width * blur))
    if light < 1:
        image = image.point([int(v * light) for v in range(256)] * 3)
    return ImageChops.add(image, _grain(image.width, image.height), 1, -128)


@lru_cache(maxsize=4)
def _grain(width: int, height: int) -> Image.Image:
    noise = generator("grain").normal(0, 2.4, size=(_TILE, _TILE, 1)) + generator("colour grain").normal(
        0, 0.7, size=(_TILE, _TILE, 3)
    )
    tile = Image.fromarray(np.clip(np.round(noise + 128), 0, 255).astype(np.uint8))
    full = Image.new("RGB", (width, height))
    for x in range(0, width, _TILE):
        for y in range(0, height, _TILE):
            full.paste(tile, (x, y))
    return full
