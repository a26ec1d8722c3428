"""What an object detector would find: the things the painter put into a picture, and where they stand on the map."""

from dataclasses import dataclass, replace

from PIL import Image, ImageChops

from infra.offline.place import point_along
from infra.offline.render import camera_of
from infra.offline.render.backdrop import Road
from infra.offline.render.canvas import Canvas
from infra.offline.render.street import Street
from infra.offline.seeded_random import generator
from infra.offline.world import ImageRecord, World

# Class names as Mapillary's detections and map features carry them.
VALUES = {
    "wires": "object--support--utility-pole",
    "lamp": "object--street-light",
    "direction": "object--traffic-sign--direction-front",
    "car": "object--vehicle--car",
}
_LOOK_WIDTH = 1024
_LEAST_PX = 3  # at that width: what is smaller, no detector finds
_BACKGROUND = (255, 0, 255)  # no thing has this colour


@dataclass(frozen=True)
class Detection:
    """One thing in a picture; the box is (left, top, right, bottom) in parts of its width and height."""

    value: str
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class StreetObject:
    """One thing of a street that stays."""

    value: str
    lat: float
    lon: float


def detections(world: World, record: ImageRecord) -> list[Detection]:
    """Poles, direction signs and cars of a picture, as painted; none where nothing can be made out."""
    condition = world.images(record.place)[record.painted_as].condition
    if condition in ("no_clue", "dark"):
        return []
    place = world.place(record.place)
    road = Road(place, generator(place.paint_seed, "road"))
    camera = camera_of(world, place, road, record)
    camera = replace(camera, width=_LOOK_WIDTH, height=round(_LOOK_WIDTH * camera.height / camera.width))
    blank = Image.new("RGB", (camera.width, camera.height), _BACKGROUND)
    canvas = Canvas(blank.copy(), camera)
    found = []
    for kind, parts in Street(place, road, canvas, record.painted_as, False).countable():
        canvas.image.paste(blank)
        for draw in parts:
            draw()
        box = ImageChops.difference(canvas.image, blank).getbbox()
        if box is None or box[2] - box[0] < _LEAST_PX or box[3] - box[1] < 2 * _LEAST_PX:
            continue
        if box[2] - box[0] > camera.width * 0.6:  # cut in two by the seam of a panorama
            continue
        found.append(
            Detection(
                VALUES[kind],
                (box[0] / camera.width, box[1] / camera.height, box[2] / camera.width, box[3] / camera.height),
            )
        )
    return found


def street_objects(world: World, index: int) -> list[StreetObject]:
    """Poles and direction signs of a place's street, near enough to its sequence to be seen in it."""
    place = world.place(index)
    road = Road(place, generator(place.paint_seed, "road"))
    camera = camera_of(world, place, road, world.images(index)[0])
    street = Street(place, road, Canvas(Image.new("RGB", (1, 1)), camera), 0, False)
    spots = [(street.pole_kind, x, z) for x, z in street.pole_spots()]
    spots += [("direction", x, z) for x, z in street.direction_spots()]
    found = []
    for kind, x, z in spots:
        lat, lon = point_along(place.lat, place.lon, place.bearing_deg, z, x)
        found.append(StreetObject(VALUES[kind], round(lat, 9), round(lon, 9)))
    return found
