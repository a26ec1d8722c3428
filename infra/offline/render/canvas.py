"""Draws street things on a picture: polygons, batches of quads, lines, and flat boards with text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from infra.offline.render.camera import NEAR_M, Camera

Colour = tuple[int, int, int]


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
