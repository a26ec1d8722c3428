"""Two cameras over one street, and what is drawn through them: polygons, quads, lines, and flat boards with text.

The cameras are an equirectangular panorama and an upright perspective photo.
Street frame, metres: x to the right of the road's middle, y up, z along the road. Both cameras stand upright, so a row
of the picture below the horizon sees the ground at one depth; `ground_depth` and `ground_rays` give that depth and the
direction of every column, and one formula paints the ground for both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image, ImageDraw

NEAR_M = 0.3
Colour = tuple[int, int, int]
Point = tuple[float, float, float]  # x, y, z in the street frame


@dataclass(frozen=True)
class Camera:
    """Where the camera stands and how it draws; `fov_deg` is None for a panorama."""

    width: int
    height: int
    x: float
    y: float
    z: float
    yaw_deg: float = 0.0
    fov_deg: float | None = None
    horizon: float = 0.5  # height of the horizon in the picture, from the top

    @property
    def is_pano(self) -> bool:
        """Whether the picture is equirectangular."""
        return self.fov_deg is None

    @property
    def focal_px(self) -> float:
        """Focal length of a photo; for a panorama, pixels per radian."""
        if self.fov_deg is None:
            return self.width / (2 * math.pi)
        return self.width / 2 / math.tan(math.radians(self.fov_deg) / 2)

    @property
    def horizon_row(self) -> float:
        """The row that looks straight ahead."""
        return self.height * (0.5 if self.is_pano else self.horizon)

    @cached_property
    def position(self) -> np.ndarray:
        """Where the camera stands."""
        return np.array([self.x, self.y, self.z])

    @cached_property
    def _turn(self) -> tuple[float, float]:
        yaw = math.radians(self.yaw_deg)
        return math.cos(yaw), math.sin(yaw)

    def project(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(column, row, depth) of street points (..., 3); depth is below NEAR_M where a photo cannot see the point.

        Columns of a panorama are unwrapped along the second-to-last axis, so a polygon over the seam stays whole.
        """
        rel = points - self.position
        cos, sin = self._turn
        right = rel[..., 0] * cos - rel[..., 2] * sin
        ahead = rel[..., 0] * sin + rel[..., 2] * cos
        if self.is_pano:
            azimuth = np.arctan2(right, ahead)
            if azimuth.ndim and azimuth.shape[-1] > 1:
                azimuth = np.unwrap(azimuth, axis=-1)
            flat = np.hypot(right, ahead)
            elevation = np.arctan2(rel[..., 1], flat)
            return self.width / 2 + azimuth * self.focal_px, self.horizon_row - elevation * self.focal_px, flat
        depth = np.maximum(ahead, 1e-6)
        scale = self.focal_px / depth
        return self.width / 2 + right * scale, self.horizon_row - rel[..., 1] * scale, ahead

    def ground_depth(self, rows: np.ndarray) -> np.ndarray:
        """Depth in metres of the ground seen in rows below the horizon; times a column's ray it is the point."""
        below = (rows + 0.5 - self.horizon_row) / self.focal_px
        if self.is_pano:
            return self.y / np.tan(np.clip(below, 1e-4, math.pi / 2 - 1e-4))
        return self.y / np.maximum(below, 1e-4)

    @cached_property
    def ground_rays(self) -> tuple[np.ndarray, np.ndarray]:
        """Per column: street (x, z) of the ray at depth 1."""
        offset = (np.arange(self.width) + 0.5 - self.width / 2) / self.focal_px
        cos, sin = self._turn
        right, ahead = (np.sin(offset), np.cos(offset)) if self.is_pano else (offset, np.ones_like(offset))
        return (right * cos + ahead * sin).astype(np.float32), (ahead * cos - right * sin).astype(np.float32)

    def rays(self, columns: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Street directions (rows, columns, 3) of pixels, not normalised."""
        cos, sin = self._turn
        offset = (columns + 0.5 - self.width / 2) / self.focal_px
        up = (self.horizon_row - rows - 0.5) / self.focal_px
        if self.is_pano:
            right, ahead, rise = np.sin(offset), np.cos(offset), np.tan(np.clip(up, -1.55, 1.55))
        else:
            right, ahead, rise = offset, np.ones_like(offset), up
        shape = (len(rows), len(columns))
        return np.stack(
            [
                np.broadcast_to((right * cos + ahead * sin)[None, :], shape),
                np.broadcast_to(rise[:, None], shape),
                np.broadcast_to((ahead * cos - right * sin)[None, :], shape),
            ],
            axis=-1,
        )


class Canvas:
    """A picture and the camera it is seen through. Things are drawn in the order given: far ones first."""

    def __init__(self, image: Image.Image, camera: Camera) -> None:
        self.image, self.camera = image, camera
        self._draw = ImageDraw.Draw(image)

    def polygon(self, points: Sequence[Sequence[float]] | np.ndarray, colour: Colour) -> None:
        """A filled flat polygon given by its corners in the street frame."""
        corners = np.asarray(points, dtype=np.float64)
        if self.camera.is_pano:
            corners = _subdivide(corners, 10)  # straight edges are curves in a panorama
        else:
            corners = self._clip(corners)
            if len(corners) < 3:
                return
        column, row, _ = self.camera.project(corners)
        self._fill(column, row, colour)

    def quads(self, corners: np.ndarray, colours: Sequence[Colour]) -> None:
        """Many small quads (n, 4, 3) with a colour each, or one for all; edges are drawn straight."""
        if not len(corners):
            return
        column, row, depth = self.camera.project(corners)
        seen = np.ones(len(corners), bool) if self.camera.is_pano else (depth > NEAR_M).all(axis=1)
        for i in np.flatnonzero(seen):
            self._fill(column[i], row[i], colours[int(i) if len(colours) > 1 else 0])

    def line(self, points: np.ndarray, colour: Colour, thickness_m: float) -> None:
        """A thin line through points of the street frame, at least one pixel wide."""
        column, row, depth = self.camera.project(np.asarray(points, dtype=np.float64))
        for i in range(len(column) - 1):
            near = min(depth[i], depth[i + 1])
            if near <= NEAR_M or abs(column[i + 1] - column[i]) > self.camera.width:
                continue
            width = max(1, round(thickness_m * self.camera.focal_px / near))
            for shift in self._shifts(column[i : i + 2]):
                ends = [(column[i] + shift, row[i]), (column[i + 1] + shift, row[i + 1])]
                self._draw.line(ends, fill=colour, width=width)

    def disc(self, centre: Sequence[float], radius_m: float, colour: Colour, squash: float = 1.0) -> None:
        """A round blob facing the camera: foliage, wheels, lamps."""
        column, row, depth = self.camera.project(np.asarray(centre, dtype=np.float64)[None, :])
        if depth[0] <= max(NEAR_M, radius_m):
            return
        rx = radius_m * self.camera.focal_px / float(depth[0])
        ry = rx * squash
        for shift in self._shifts(np.array([column[0] - rx, column[0] + rx])):
            x, y = float(column[0]) + shift, float(row[0])
            self._draw.ellipse([x - rx, y - ry, x + rx, y + ry], fill=colour)

    def discs(self, centres: np.ndarray, radii_m: np.ndarray, colours: Sequence[Colour]) -> None:
        """Many round blobs at once, drawn in the order given."""
        column, row, depth = self.camera.project(centres)
        radius = radii_m * self.camera.focal_px / np.maximum(depth, NEAR_M)
        for i in np.flatnonzero(depth > np.maximum(NEAR_M, radii_m)):
            x, y, r = float(column[i]), float(row[i]), float(radius[i])
            for shift in self._shifts(np.array([x - r, x + r])):
                self._draw.ellipse([x + shift - r, y - r, x + shift + r, y + r], fill=colours[int(i)])

    def size_px(self, at: Sequence[float] | np.ndarray, metres: float) -> float:
        """How many pixels a length takes at a point, seen straight on."""
        _, _, depth = self.camera.project(np.asarray(at, dtype=np.float64)[None, :])
        return metres * self.camera.focal_px / max(NEAR_M, float(depth[0]))

    def board(
        self, texture: Image.Image, top_left: np.ndarray, right: np.ndarray, down: np.ndarray
    ) -> tuple[int, int, Image.Image] | None:
        """A picture on a flat rectangle: exact rays through every pixel it covers, so text keeps its perspective.

        Returns (left, top, mask of the pixels painted), or None where nothing was.
        """
        corners = np.array([top_left, top_left + right, top_left + right + down, top_left + down])
        outline = _subdivide(corners, 6)
        column, row, depth = self.camera.project(outline)
        if not self.camera.is_pano and depth.min() <= NEAR_M:
            return None
        x0, x1 = int(np.floor(column.min())), int(np.ceil(column.max())) + 1
        y0, y1 = max(0, int(np.floor(row.min()))), min(self.camera.height, int(np.ceil(row.max())) + 1)
        if x1 - x0 < 2 or y1 - y0 < 2 or x1 - x0 > self.camera.width * 0.6:
            return None
        if not self.camera.is_pano:
            x0, x1 = max(0, x0), min(self.camera.width, x1)
            if x1 - x0 < 2:
                return None
        ray = self.camera.rays(np.arange(x0, x1, dtype=np.float64), np.arange(y0, y1, dtype=np.float64))
        normal = np.cross(right, down)
        slope = ray @ normal
        slope = np.where(np.abs(slope) < 1e-9, 1e-9, slope)
        reach = float(normal @ (top_left - self.camera.position)) / slope
        hit = self.camera.position + ray * reach[..., None] - top_left
        u, v = hit @ right / float(right @ right), hit @ down / float(down @ down)
        inside = (u >= 0) & (u < 1) & (v >= 0) & (v < 1) & (reach > 0)
        pixels = _sample(np.asarray(texture), u, v)
        mask = Image.fromarray((inside * 255).astype(np.uint8))
        patch = Image.fromarray(pixels)
        for shift in self._shifts(np.array([x0, x1], dtype=np.float64)):
            self.image.paste(patch, (x0 + int(shift), y0), mask)
        return x0, y0, mask

    def _fill(self, column: np.ndarray, row: np.ndarray, colour: Colour) -> None:
        for shift in self._shifts(column):
            flat = np.empty(2 * len(column))
            flat[0::2], flat[1::2] = column + shift, row
            self._draw.polygon(flat.tolist(), fill=colour)

    def _shifts(self, column: np.ndarray) -> list[int]:
        """By how many pixels to move a shape so that every copy that touches the picture is drawn."""
        low, high, width = float(column.min()), float(column.max()), self.camera.width
        if not self.camera.is_pano:
            return [0] if high >= 0 and low <= width else []
        return [shift for shift in (-width, 0, width) if high + shift >= 0 and low + shift <= width]

    def _clip(self, corners: np.ndarray) -> np.ndarray:
        _, _, depth = self.camera.project(corners)
        if (depth > NEAR_M).all():
            return corners
        kept = []
        for i in range(len(corners)):
            j = (i + 1) % len(corners)
            if depth[i] > NEAR_M:
                kept.append(corners[i])
            if (depth[i] > NEAR_M) != (depth[j] > NEAR_M):
                part = (NEAR_M + 1e-3 - depth[i]) / (depth[j] - depth[i])
                kept.append(corners[i] + part * (corners[j] - corners[i]))
        return np.array(kept)


def colour(text: str) -> Colour:
    """A colour as a table writes it: six hexadecimal digits."""
    red, green, blue = bytes.fromhex(text)
    return red, green, blue


def across(x0: float, x1: float, y0: float, y1: float, z: float) -> list[Point]:
    """Corners of an upright rectangle across the road."""
    return [(x0, y0, z), (x0, y1, z), (x1, y1, z), (x1, y0, z)]


def along(x: float, y0: float, y1: float, z0: float, z1: float) -> list[Point]:
    """Corners of an upright rectangle along the road."""
    return [(x, y0, z0), (x, y1, z0), (x, y1, z1), (x, y0, z1)]


def level(x0: float, x1: float, y: float, z0: float, z1: float) -> list[Point]:
    """Corners of a level rectangle."""
    return [(x0, y, z0), (x1, y, z0), (x1, y, z1), (x0, y, z1)]


def _subdivide(corners: np.ndarray, pieces: int) -> np.ndarray:
    following = np.roll(corners, -1, axis=0)
    part = np.arange(pieces)[None, :, None] / pieces
    return np.asarray((corners[:, None] + part * (following - corners)[:, None]).reshape(-1, 3))


def _sample(texture: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Bilinear lookup; coordinates outside are clamped and masked by the caller."""
    height, width = texture.shape[:2]
    x = np.clip(u * width - 0.5, 0, width - 1.001)
    y = np.clip(v * height - 0.5, 0, height - 1.001)
    column, row = x.astype(np.int32), y.astype(np.int32)
    fx, fy = (x - column)[..., None].astype(np.float32), (y - row)[..., None].astype(np.float32)
    below, beside = np.minimum(row + 1, height - 1), np.minimum(column + 1, width - 1)
    top = texture[row, column] * (1 - fx) + texture[row, beside] * fx
    bottom = texture[below, column] * (1 - fx) + texture[below, beside] * fx
    return np.asarray((top * (1 - fy) + bottom * fy + 0.5).astype(np.uint8))
