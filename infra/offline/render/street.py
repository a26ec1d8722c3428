"""One street, put together from a place's attributes and drawn far to near."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from infra.offline.place import Place
from infra.offline.render.backdrop import Road
from infra.offline.render.canvas import Canvas, Colour
from infra.offline.render.signs import (
    DIRECTION_COLOURS,
    OVERHEAD_HEIGHTS,
    OVERHEAD_M,
    PLATE_COLOURS,
    SHOP_COLOURS,
    BoardWatch,
    board_texture,
)
from infra.offline.render.things import (
    CAR_COLOURS,
    House,
    draw_car,
    draw_house,
    draw_monument,
    draw_pole,
    draw_tree,
    draw_wires,
    houses_along,
)
from infra.offline.seeded_random import generator

OVERHEAD_ALONG_M = (-4.5, 13.5, 31.5, 49.5, 67.5)  # a camera every 9 m has one 4.5 m and one 13.5 m away
LANDMARK_WORD = "MONUMENT"
_WIRED = frozenset("US CA JP KR TW BR AR CL PE CO MX PH TH VN ID IN AU ZA NG KE".split())  # noqa: SIM905

Thing = tuple[float, Callable[[], None]]  # (distance, draw)


class Street:
    """The things of one picture; `traffic` seeds what moves, the place seeds what stands."""

    def __init__(
        self,
        place: Place,
        road: Road,
        canvas: Canvas,
        traffic: int,
        landmark: bool,
        watch: BoardWatch | None = None,
        text: bool = True,
    ) -> None:
        self.place, self.road, self.canvas, self.traffic, self.landmark = place, road, canvas, traffic, landmark
        self._watch, self._text = watch, text  # notes the boards; False: boards without text, as a control
        self._things: list[Thing] = []
        around = math.radians(place.sun_azimuth_deg - place.bearing_deg)
        self._sun = (math.sin(around), math.cos(around))

    def draw(self) -> None:
        """Everything, far things first."""
        self._houses()
        self._green()
        self._poles()
        self._direction_sign()
        self._street_plates()
        self._overhead_boards()
        self._cars()
        if self.landmark:
            self._monument()
        for _, draw in sorted(self._things, key=lambda thing: -thing[0]):
            draw()

    def _add(self, x: float, z: float, draw: Callable[[], None]) -> None:
        self._things.append((math.hypot(x - self.canvas.camera.x, z - self.canvas.camera.z), draw))

    def _light(self, nx: float, nz: float) -> float:
        return 0.66 + 0.34 * max(0.0, nx * self._sun[0] + nz * self._sun[1])

    def _houses(self) -> None:
        rng = generator(self.place.paint_seed, "houses")
        place = self.place
        front = self.road.half_m + self.road.walk_m + (0.4 if place.setting == "centre" else 4.5)
        side = 1.0 if rng.random() < 0.5 else -1.0
        spots = [(side * (-1) ** k, 9.0 + 15.0 * k + float(rng.uniform(-3, 3))) for k in range(len(place.shops))]
        palette = rng.permutation(len(SHOP_COLOURS))
        for house in houses_along(place, front, spots, rng):
            look = int(rng.integers(1 << 30))
            light = (self._light(-house.side, 0.0), self._light(0.0, -1.0), self._light(0.0, 1.0))
            nearest = min(max(self.canvas.camera.z, house.z0), house.z1)

            def draw(house: House = house, look: int = look, light: tuple[float, float, float] = light) -> None:
                draw_house(self.canvas, house, place, light, generator(look))
                if house.shop is not None:  # flat on the wall, so it belongs to the house in the order of drawing
                    colours = SHOP_COLOURS[int(palette[house.shop % len(palette)])]
                    self._shop_board(place.shops[house.shop].lines, house, colours)

            # A wide house is sorted by its nearest corner plus half its depth, behind whatever stands before it.
            self._add(house.side * (house.front_m + 4.0), nearest, draw)
        for k, (spot_side, first) in enumerate(spots):
            # Boards come again down the road, so that the end of a sequence has something to read too.
            for z in (first, first + 37.0) if rng.random() < 0.75 else (first + 21.0,):
                colours = SHOP_COLOURS[int(palette[k % len(palette)])]
                self._standing_board(place.shops[k].lines, spot_side, z - 5.5, colours)

    def _shop_board(self, lines: tuple[str, ...], house: House, colours: tuple[Colour, Colour]) -> None:
        """The long board over the shop window, flat on the front."""
        width = min(7.6, max(4.2, 0.34 * max(len(lines[0]), 8)))
        side, z = house.side, (house.z0 + house.z1) / 2
        x, top, height = side * (house.front_m - 0.12), 3.75, 1.05
        # Read from the road, the text runs against z on the right side and with z on the left.
        start, run = (z + width / 2, -width) if side > 0 else (z - width / 2, width)
        heights = (0.46, 0.24) if len(lines) > 1 else (0.55,)
        board = self._board(lines, (x, top, start), (0.0, 0.0, run), height, colours, heights)
        board[1]()

    def _standing_board(self, lines: tuple[str, ...], side: float, z: float, colours: tuple[Colour, Colour]) -> None:
        """A board on a post at the roadside that faces those who come along the road."""
        x = side * (self.road.half_m + 1.3)
        width = 2.3
        heights = (0.36, 0.22) if len(lines) > 1 else (0.42,)
        self._add(x, z + 0.05, partial(self._post, x, z, 2.4))
        self._things.append(self._board(lines, (x - width / 2, 3.3, z), (width, 0.0, 0.0), 1.0, colours, heights))

    def _post(self, x: float, z: float, height_m: float) -> None:
        self.canvas.line(np.array([(x, 0, z), (x, height_m, z)]), (122, 124, 128), 0.1)

    def _direction_sign(self) -> None:
        lines = tuple(f"{name}  {km}" for name, km in self.place.towns_ahead)
        if not lines:
            return
        width, height = 3.4, 0.72 * len(lines) + 0.2
        colours = DIRECTION_COLOURS[self.place.facts.direction_sign]
        x = self.road.side * (self.road.half_m + 2.4)
        first = float(generator(self.place.paint_seed, "direction").uniform(0, 14))
        for z in (24.0 + first, 78.0 + first):
            for post in (x - 1.1, x + 1.1):
                self._add(post, z + 0.06, partial(self._post, post, z, 2.6))
            corner, heights = (x - width / 2, 2.4 + height, z), (0.66 / len(lines),) * len(lines)
            self._things.append(self._board(lines, corner, (width, 0.0, 0.0), height, colours, heights))

    def _street_plates(self) -> None:
        colours = PLATE_COLOURS[self.place.facts.continent in ("NA", "OC")]
        for z in (7.0, 34.0, 61.0):
            x = self.road.side * (self.road.half_m + 0.8)
            self._add(x, z + 0.05, partial(self._post, x, z, 2.5))
            corner = (x - 0.8, 2.85, z)
            self._things.append(self._board((self.place.street,), corner, (1.6, 0.0, 0.0), 0.36, colours, (0.62,)))

    def _overhead_boards(self) -> None:
        """Boards over the oncoming lane with the names of street and region, to be read from both ends."""
        colours = PLATE_COLOURS[self.place.facts.continent in ("NA", "OC")]
        width, high = OVERHEAD_M
        edge = -self.road.side * (self.road.half_m + 0.5)
        x, top = -self.road.side * (self.road.half_m + 0.5 - width / 2), 4.9
        for z in OVERHEAD_ALONG_M:
            self._add(edge, z + 0.05, partial(self._mast, edge, x, z, top))
            way = 1.0 if self.canvas.camera.z < z else -1.0
            corner, run = (x - way * width / 2, top, z), (way * width, 0.0, 0.0)
            lines = (self.place.street, self.place.region)
            self._things.append(self._board(lines, corner, run, high, colours, OVERHEAD_HEIGHTS))

    def _mast(self, edge: float, x: float, z: float, top: float) -> None:
        self.canvas.line(np.array([(edge, 0, z), (edge, top, z), (x, top, z)]), (122, 124, 128), 0.12)

    def _board(
        self,
        lines: tuple[str, ...],
        corner: tuple[float, float, float],
        run: tuple[float, float, float],
        height: float,
        colours: tuple[Colour, Colour],
        heights: tuple[float, ...],
    ) -> Thing:
        """A board of text, not yet drawn."""
        top_left, right, down = np.array(corner), np.array(run), np.array([0.0, -height, 0.0])
        centre = top_left + right / 2 + down / 2
        quad = [top_left, top_left + right, top_left + right + down, top_left + down]

        def draw() -> None:
            if right[0] and (self.canvas.camera.z > corner[2]) == (right[0] > 0):  # seen from behind
                self.canvas.polygon(np.array(quad), (128, 130, 132))
                return
            high = self.canvas.size_px(centre, height)
            if high < 5 or not self._text:
                self.canvas.polygon(np.array(quad), colours[0])
                return
            rows = int(min(220, max(12, high * 1.15)))
            columns = max(8, round(rows * float(np.abs(right).sum()) / height))
            texture = board_texture(lines, (columns, rows), *colours, heights)
            painted = self.canvas.board(texture, top_left, right, down)
            if self._watch is not None and painted is not None:
                self._watch.note(lines, heights, high, painted)

        camera = self.canvas.camera
        return math.hypot(centre[0] - camera.x, centre[2] - 0.02 - camera.z), draw

    def _green(self) -> None:
        rng = generator(self.place.paint_seed, "green")
        count = {"centre": 8, "suburb": 22, "rural": 44}[self.place.setting]
        if self.place.climate in ("arid", "polar"):
            count //= 2
        near = self.road.half_m + (1.9 if self.place.setting == "centre" else 2.8)
        for _ in range(count):
            side = 1.0 if rng.random() < 0.5 else -1.0
            x = side * (near + float(rng.exponential(1.0 if self.place.setting == "centre" else 9.0)))
            z, size = float(rng.uniform(-60, 150)), float(rng.uniform(4.5, 9.0))
            look = int(rng.integers(1 << 30))
            if self.place.setting == "centre":
                x, size = side * (self.road.half_m + 2.0), size * 0.6

            def draw(x: float = x, z: float = z, size: float = size, look: int = look) -> None:
                draw_tree(self.canvas, self.place.climate, x, z, size, generator(look))

            self._add(x, z, draw)

    def _poles(self) -> None:
        kind = "wires" if self.place.country in _WIRED or self.place.setting == "rural" else "lamp"
        zs = np.arange(-64, 160, 32) + float(generator(self.place.paint_seed, "poles").uniform(0, 20))
        x = -self.road.side * (self.road.half_m + 0.7)
        for z in zs.tolist():
            self._add(x, z, partial(draw_pole, self.canvas, x, z, kind))
        if kind == "wires":
            self._add(x, self.canvas.camera.z + 200, partial(draw_wires, self.canvas, x, zs.tolist()))

    def _cars(self) -> None:
        rng = generator(self.place.paint_seed, "traffic", self.traffic)
        lane = self.road.side * self.road.lane_m / 2
        light = self._light(0.0, -1.0)
        base = self.canvas.camera.z
        plan = [(lane, base + float(rng.uniform(11, 55)), 1.0)] if rng.random() < 0.6 else []
        plan += [(-lane, base + float(rng.uniform(7, 30)), -1.0)]
        plan += [(-lane, base + float(rng.uniform(38, 90)), -1.0)] if rng.random() < 0.7 else []
        plan += [(lane, base - float(rng.uniform(9, 30)), 1.0)] if rng.random() < 0.5 else []
        for x, z, direction in plan:
            colour = CAR_COLOURS[int(rng.integers(len(CAR_COLOURS)))]
            self._add(x, z, partial(draw_car, self.canvas, x, z, direction, colour, light))

    def _monument(self) -> None:
        rng = generator(self.place.paint_seed, "monument")
        form, z = int(rng.integers(3)), self.canvas.camera.z + float(rng.uniform(30, 42))
        x = -self.road.side * 1.0
        self._add(x, z, partial(draw_monument, self.canvas, x, z, form))
        lines = (LANDMARK_WORD, self.place.local_name)
        # The board stands near, on the side the camera looks to: from afar it could not be read.
        camera = self.canvas.camera
        side = -self.road.side if camera.is_pano else math.copysign(1.0, camera.yaw_deg)
        board_x, board_z = side * (self.road.half_m + 0.1), camera.z + 13.0
        self._add(board_x + side, board_z + 0.05, partial(self._post, board_x + side, board_z, 3.8))
        corner = (board_x - 2.5, 5.6, board_z)  # over the heads of the other boards
        self._things.append(
            self._board(lines, corner, (5.0, 0.0, 0.0), 1.9, ((120, 92, 40), (250, 240, 210)), (0.4, 0.34))
        )
