"""Maps of the world from above: street maps and satellite pictures, of the same ground as the scenes and panoramas."""

from __future__ import annotations

import io

from PIL import Image

from infra.offline.maps.view import View
from infra.offline.world import World

STYLES = ("roadmap", "satellite")


def draw_map(world: World, view: View, style: str) -> Image.Image:
    """The picture of a view in one of STYLES."""
    # The painters bring SciPy and shapely: only who asks for a map waits for them.
    if style == "satellite":
        from infra.offline.maps.satellite import draw_satellite

        return draw_satellite(world, view)
    from infra.offline.maps.roadmap import draw_roadmap

    return draw_roadmap(world, view)


def png(image: Image.Image) -> bytes:
    """PNG bytes of a picture, the same for the same pixels."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()
