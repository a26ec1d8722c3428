"""Two cameras over one street: an equirectangular panorama and an upright perspective photo.

Street frame, metres: x to the right of the road's middle, y up, z along the road. Both cameras stand upright, so a row
of the picture below the horizon sees the ground at one depth; `ground_depth` and `ground_rays` give that depth and the
direction of every column, and one formula paints the ground for both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

NEAR_M = 0.3


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
