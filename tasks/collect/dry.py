"""The work of the collect stages as far as it goes without fetching a picture: what is counted is what a run sends."""

from functools import partial
from typing import Any

from schemas.settings.collect import CollectSettings
from schemas.settings.services import MapillaryEndpoint, StacEndpoint
from tasks.collect import street_view
from tasks.collect.candidates import Candidate
from tasks.collect.meter import Meter, mapillary_meter, stac_meter, tally
from tasks.collect.satellite.choice import choose, owners
from tasks.collect.satellite.cog import ranges
from tasks.collect.satellite.grid import Grid, grid_around
from tasks.collect.satellite.raster import Mask, blocks_of, on_grid
from tasks.collect.satellite.scenes import BANDS, VISUAL, Scene, UnusableScene
from tasks.collect.satellite.search import find_scenes
from tasks.image_store import ImageStore
from tasks.lake import Lake
from tasks.services import Connection, Mapillary, ServiceError, Stac

BYTES_PER_PIXEL = 0.25  # of a JPEG whose host does not say how large it is
PIXELS = 8_000_000  # of a picture that does not say it either


class _ReadOnlyLake:
    """As much of a lake as a place that stores nothing needs: a name would have to be written down."""

    def __init__(self, images: ImageStore) -> None:
        self.images = images

    def name(self, *parts: str) -> str:
        return ""


class DryStreets:
    """Street-view places, searched as ever; of the pictures only the size is asked for."""

    def __init__(self, connection: Connection, lake: Lake, settings: CollectSettings) -> None:
        assert isinstance(connection.endpoint, MapillaryEndpoint)
        self.meter: Meter = mapillary_meter(connection.endpoint)
        self.mapillary = Mapillary(connection, transport=self.meter.transport)
        read_only: Any = _ReadOnlyLake(lake.images)
        self._bench = street_view.Bench(self.mapillary, read_only, settings, take=_size_only)

    async def place(self, item: dict[str, Any]) -> None:
        await street_view.work(item, self._bench)

    async def close(self) -> None:
        await self.mapillary.close()


async def _size_only(candidate: Candidate, bench: street_view.Bench) -> dict[str, Any]:
    size = None
    if candidate.url is not None:
        try:
            size = (await bench.mapillary.outline(candidate.url)).size
        except ServiceError as error:
            if error.retryable or error.kind == "auth":
                raise
    running = tally.get()
    if running is not None:
        running.add("picture", 1, size or round(BYTES_PER_PIXEL * (candidate.pixels or PIXELS)))
    return {}


class DryScenes:
    """Satellite pictures: scenes searched and chosen by their cloud maps as ever; bands are only counted."""

    def __init__(self, connection: Connection, settings: CollectSettings) -> None:
        assert isinstance(connection.endpoint, StacEndpoint)
        self.meter: Meter = stac_meter(connection.endpoint)
        self.stac = Stac(connection, transport=self.meter.transport)
        self._settings = settings.satellite

    async def picture(self, item: dict[str, Any]) -> None:
        settings = self._settings
        grid = grid_around(
            item["lat"], item["lon"], item["metres_per_pixel"], item["size_px"], item["east"], item["north"]
        )
        scenes, _, _ = await find_scenes(self.stac, grid, settings)
        if not scenes:
            return
        choice = await choose(self.stac, scenes, grid, settings)
        if not choice.layers:
            return
        owner, _ = owners(choice.layers)
        for number, layer in enumerate(choice.layers):
            need = owner == number
            for name in ((VISUAL,) if settings.assets == "visual" else BANDS) if need.any() else ():
                await self._count_band(layer.scene, name, grid, need)

    async def _count_band(self, scene: Scene, name: str, grid: Grid, need: Mask) -> None:
        try:
            file = await on_grid(partial(self.stac.read, scene.hrefs[name]), grid, scene.epsg)
        except UnusableScene:
            return
        running = tally.get()
        for start, end, _ in ranges(file.level, file.tiles(blocks_of(need))):
            if running is not None:
                running.add("asset", 1, end - start)

    async def close(self) -> None:
        await self.stac.close()
