"""Satellite pictures: the ground without clouds, and the streets that have panoramas."""

from __future__ import annotations

from PIL import Image, ImageDraw

from infra.offline.maps.ground import far_colour, ground_width_px, is_near, near_ground
from infra.offline.maps.streets import street_lines
from infra.offline.maps.view import View
from infra.offline.world import World


def draw_satellite(world: World, view: View) -> Image.Image:
    """The picture of a view from above."""
    if not is_near(view):
        return far_colour(world.seed, view)
    image = near_ground(world.seed, view).colour
    draw = ImageDraw.Draw(image)
    if view.zoom >= 15:
        for line in street_lines(world, view):
            draw.line(line.ends, fill=(84, 82, 80), width=ground_width_px(8.0, view, 2))
    return image
