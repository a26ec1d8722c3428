"""The work of the collect stages as far as it goes without fetching a picture: what is counted is what a run sends.

What a run would compute is computed too, with pictures of our own, so that the time tells as well.
"""

import asyncio
import time
from functools import partial
from typing import Any

from schemas.settings.collect import CollectSettings
from schemas.settings.services import MapillaryEndpoint, StacEndpoint
from tasks.collect import street_view
from tasks.collect.candidates import Candidate
from tasks.collect.forecast.meter import Meter, mapillary_meter, stac_meter, tally
from tasks.collect.forecast.rehearsal import compose_like, prepare_like
from tasks.collect.keeping import ended_upstream
from tasks.collect.satellite.choice import choose, owners
from tasks.collect.satellite.cog import ranges, read_tiles
from tasks.collect.satellite.grid import Grid, grid_around
from tasks.collect.satellite.layers import Layer
from tasks.collect.satellite.raster import Mask, OnGrid, blocks_of, on_grid
from tasks.collect.satellite.scenes import BANDS, VISUAL, UnusableScene
from tasks.collect.satellite.search import find_scenes, newest_processing
from tasks.collect.satellite.together import together
from tasks.collect.worker import WorkerContext
from tasks.lake import Lake
from tasks.lake.image_store import ImageStore
from tasks.runtime.computing import Computing
from tasks.services import Connection, Mapillary, ServiceError, Stac

BYTES_PER_PIXEL = 0.25  # of a JPEG whose host does not say how large it is
PIXELS = 8_000_000  # of a picture that does not say it either
TASTES = 4  # satellite pictures of whose bands a tile is read


class _ReadOnlyLake:
    """As much of a lake as a place that stores nothing needs: a name would have to be written down."""

    def __init__(self, images: ImageStore) -> None:
        self.images = images

    def name(self, *parts: str) -> str:
        return ""


class DryStreets:
    """Street-view places, searched as ever; of the pictures only the size is asked for."""

    def __init__(self, connection: Connection, lake: Lake, settings: CollectSettings, threads: int = 1) -> None:
        assert isinstance(connection.endpoint, MapillaryEndpoint)
        self.meter: Meter = mapillary_meter(connection.endpoint)
        self.mapillary = Mapillary(connection, transport=self.meter.transport)
        self._settings, self._computing = settings, Computing(threads)
        self.came: frozenset[str] = frozenset()  # pictures that a check will have fetched before their place is redone
        read_only: Any = _ReadOnlyLake(lake.images)
        ended = ended_upstream(lake, street_view.NAME)
        self._bench = WorkerContext(self.mapillary, read_only, settings, take=self._size_only, ended=ended)

    async def place(self, item: dict[str, Any]) -> None:
        await street_view.work(item, self._bench)

    async def close(self) -> None:
        await self.mapillary.close()

    async def _size_only(self, candidate: Candidate, context: WorkerContext) -> dict[str, Any]:
        size, pixels = None, candidate.pixels or PIXELS
        assert candidate.kind is not None, "a picture of no clear kind answers no wish"
        if candidate.source_id in self.came:
            await self._computing.run(prepare_like, pixels, candidate.kind, self._settings)
            return {}
        if candidate.url is not None:
            try:
                size = (await self.mapillary.outline(candidate.url)).size
            except ServiceError as error:
                if error.retryable or error.kind == "auth":
                    raise
        running = tally.get()
        if running is not None:
            running.add("picture", 1, size or round(BYTES_PER_PIXEL * pixels))
        await self._computing.run(prepare_like, pixels, candidate.kind, self._settings)
        return {}


class DryScenes:
    """Satellite pictures: scenes searched and chosen by their cloud maps as ever; bands are only counted.

    How long bands take is seen from one tile of each: `tasted_s` for `tasted_bytes`; `band_bytes` is what a run reads.
    """

    def __init__(self, connection: Connection, settings: CollectSettings) -> None:
        assert isinstance(connection.endpoint, StacEndpoint)
        self.meter: Meter = stac_meter(connection.endpoint)
        self.stac = Stac(connection, transport=self.meter.transport)
        self._settings = settings.satellite
        self._begun = 0
        self.tasted_s = 0.0
        self.tasted_bytes = self.band_bytes = 0

    async def picture(self, item: dict[str, Any]) -> None:
        settings = self._settings
        self._begun += 1
        tastes = 1 < self._begun <= 1 + TASTES  # the first finds nothing ready and tells nothing
        grid = grid_around(
            item["lat"], item["lon"], item["metres_per_pixel"], item["size_px"], item["east"], item["north"]
        )
        scenes, _, _ = await find_scenes(self.stac, grid, settings)
        if not scenes:
            return
        choice = await choose(self.stac, newest_processing(scenes), grid, settings)
        if not choice.layers:
            return
        owner, _ = owners(choice.layers)
        names = (VISUAL,) if settings.assets == "visual" else BANDS
        needs = [(layer, blocks_of(owner == number)) for number, layer in enumerate(choice.layers)]
        bands = await together(
            self._open_band(layer, name, grid, need) for layer, need in needs if need.any() for name in names
        )
        running = tally.get()
        for file, tiles in bands:
            for start, end, _ in ranges(file.level, tiles) if file is not None else ():
                self.band_bytes += end - start
                if running is not None:
                    running.add("asset", 1, end - start)
        if tastes:
            await self._taste([(file, tiles[:1]) for file, tiles in bands if file is not None and tiles])
        await asyncio.to_thread(compose_like, choice.layers, grid.size, settings)

    async def _open_band(self, layer: Layer, name: str, grid: Grid, need: Mask) -> tuple[OnGrid | None, list[int]]:
        try:
            file = await on_grid(partial(self.stac.read, layer.scene.hrefs[name]), grid, layer.scene.epsg)
        except UnusableScene:
            return None, []
        return file, file.tiles(need)

    async def _taste(self, bands: list[tuple[OnGrid, list[int]]]) -> None:
        """Read a tile of each band for its time. A run reads it too, among others: here it counts for nobody."""
        token = tally.set(None)
        start_s = time.monotonic()
        try:
            await together(read_tiles(file.read, file.level, tiles, (0, 0, 1, 1)) for file, tiles in bands)
        finally:
            tally.reset(token)
        self.tasted_s += time.monotonic() - start_s
        self.tasted_bytes += sum(file.level.counts[tile] for file, tiles in bands for tile in tiles)

    async def close(self) -> None:
        await self.stac.close()
