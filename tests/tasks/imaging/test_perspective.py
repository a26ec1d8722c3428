"""Perspective views: geometry against other formulas and another library, seam and poles, the bound of the cache."""

import math

import numpy as np
import py360convert
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tasks.imaging.perspective import Panorama, View, turn, view_maps, yaw_of_bearing

WIDTH = 1024
PIXEL = 2 * math.pi / WIDTH  # radians at the horizon


def compass_panorama(width: int = WIDTH) -> NDArray[np.float32]:
    """Every pixel holds the direction it shows, as a unit vector (east of the centre, up, ahead): no seam, no pole."""
    longitude = ((np.arange(width) + 0.5) / width - 0.5) * 2 * np.pi
    latitude = (0.5 - (np.arange(width // 2) + 0.5) / (width // 2)) * np.pi
    lon, lat = np.meshgrid(longitude, latitude)
    return np.dstack([np.cos(lat) * np.sin(lon), np.sin(lat), np.cos(lat) * np.cos(lon)]).astype(np.float32)


def noise(width: int = WIDTH, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (width // 2, width, 3), dtype=np.uint8)


def gnomonic(view: View) -> NDArray[np.float64]:
    """Directions of the view's pixels by the inverse gnomonic projection of map makers, roll by turning the plane."""
    half = math.tan(math.radians(view.fov_deg) / 2)
    step = 2 * half / view.width
    x, y = np.meshgrid(
        (np.arange(view.width) + 0.5) * step - half,
        (view.height / 2 - np.arange(view.height) - 0.5) * step,
    )
    roll, lat0, lon0 = (math.radians(a) for a in (view.roll_deg, view.pitch_deg, view.yaw_deg))
    x, y = x * math.cos(roll) + y * math.sin(roll), y * math.cos(roll) - x * math.sin(roll)
    rho = np.hypot(x, y)
    c = np.arctan(rho)
    lat = np.arcsin(np.cos(c) * math.sin(lat0) + y / rho * np.sin(c) * math.cos(lat0))
    lon = lon0 + np.arctan2(x * np.sin(c), rho * math.cos(lat0) * np.cos(c) - y * math.sin(lat0) * np.sin(c))
    return np.dstack([np.cos(lat) * np.sin(lon), np.sin(lat), np.cos(lat) * np.cos(lon)])


PANORAMA = Panorama(compass_panorama())  # type: ignore[arg-type]  # directions instead of colours
angles = st.floats(-720, 720, allow_nan=False)
views = st.builds(
    View,
    yaw_deg=angles,
    pitch_deg=st.floats(-90, 90),
    fov_deg=st.floats(2, 150),
    width=st.integers(16, 48).map(lambda n: 2 * n),  # even: no ray through the middle, where the projection divides
    height=st.integers(16, 48).map(lambda n: 2 * n),
    roll_deg=angles,
)


@settings(max_examples=150, deadline=None)
@given(views)
@example(View(180, 0, 90, 64, 64))
@example(View(179.99, 0, 90, 64, 64))
@example(View(0, 90, 90, 64, 64))
@example(View(45, -90, 20, 64, 64))
def test_every_pixel_shows_its_direction(view: View) -> None:
    """Against the gnomonic projection, anywhere on the sphere: at most 1/64 pixel of rounding, and interpolation."""
    shown = PANORAMA.view(view).astype(np.float64)
    shown /= np.linalg.norm(shown, axis=2, keepdims=True)
    error = np.linalg.norm(shown - gnomonic(view), axis=2)
    assert error.max() < PIXEL * 0.04


@pytest.mark.parametrize(("yaw", "pitch"), [(0, 0), (175, 0), (-90, 30), (10, 85), (0, -89.9)])
def test_a_point_is_where_it_is_projected_to(yaw: float, pitch: float) -> None:
    """A round lamp in a dark panorama appears where its direction meets the image plane."""
    directions = compass_panorama(2048)
    view, tilt, focal = View(yaw, pitch, 80, 400, 300), math.radians(pitch), 200 / math.tan(math.radians(40))
    rows, columns = np.mgrid[0:300, 0:400] + 0.5
    seen = 0
    for lon_deg, lat_deg in ((0, 0), (180, 5), (-179.9, -3), (165, 20), (-100, 40), (30, 89), (-60, 75), (0, -88)):
        lon, lat = math.radians(lon_deg), math.radians(lat_deg)
        lamp = np.array([math.cos(lat) * math.sin(lon), math.sin(lat), math.cos(lat) * math.cos(lon)], np.float32)
        lon -= math.radians(yaw)
        ahead = math.sin(tilt) * math.sin(lat) + math.cos(tilt) * math.cos(lat) * math.cos(lon)
        if ahead < 0.3:
            continue
        x = 200 + focal * math.cos(lat) * math.sin(lon) / ahead
        y = 150 - focal * (math.cos(tilt) * math.sin(lat) - math.sin(tilt) * math.cos(lat) * math.cos(lon)) / ahead
        if not (10 < x < 390 and 10 < y < 290):
            continue
        lit = np.where(directions @ lamp > math.cos(math.radians(0.8)), 255, 0).astype(np.uint8)
        shown = Panorama(np.dstack([lit] * 3)).view(view)[..., 0].astype(float)
        assert abs((shown * columns).sum() / shown.sum() - x) < 0.3
        assert abs((shown * rows).sum() / shown.sum() - y) < 0.3
        seen += 1
    assert seen


@pytest.mark.parametrize(
    "view",
    [
        View(0, 0, 90, 256, 256),
        View(170, 10, 90, 320, 180),
        View(30, 80, 100, 150, 250),
        View(-77, -33, 70, 200, 200, 20),
        View(0, 90, 60, 151, 151),
        View(180, -90, 60, 150, 100, -30),
        View(12.3, 4.5, 120, 333, 111),
    ],
)
def test_equal_to_py360convert(view: View) -> None:
    """Its outermost samples lie on the edge of its field of view, ours half a pixel inside: its field is narrowed."""
    half = math.tan(math.radians(view.fov_deg) / 2)
    fov = [math.degrees(2 * math.atan(half * (side - 1) / view.width)) for side in (view.width, view.height)]
    size = (view.height, view.width)
    theirs = py360convert.e2p(noise(), (fov[0], fov[1]), view.yaw_deg, view.pitch_deg, size, view.roll_deg, "bilinear")
    ours = Panorama(noise()).view(view)
    assert np.abs(ours.astype(int) - theirs).max() <= 1


@settings(max_examples=50, deadline=None)
@given(views, st.integers(-3, 3))
def test_a_full_turn_changes_nothing(view: View, turns: int) -> None:
    again = View(view.yaw_deg + 360 * turns, view.pitch_deg, view.fov_deg, view.width, view.height, view.roll_deg)
    assert again == view


@pytest.mark.parametrize("yaw", [-180, -90, 0, 45, 90.5])
def test_neighbouring_views_continue_each_other(yaw: float) -> None:
    """The last column of a view and the first of the next one lie a pixel apart; the edges lie where the fov says."""
    left = PANORAMA.view(View(yaw, 0, 90, 200, 200))
    right = PANORAMA.view(View(yaw + 90, 0, 90, 200, 200))
    assert np.abs(left[:, -1] - right[:, 0]).max() < 2 * (2 / 200)
    middle = left[100, -1]
    edge = math.degrees(math.atan2(middle[0], middle[2])) - yaw
    assert (edge + 180) % 360 - 180 == pytest.approx(math.degrees(math.atan(199 / 200)), abs=0.05)


def test_roll_tips_the_camera_clockwise() -> None:
    upper = PANORAMA.view(View(0, 0, 90, 101, 101, roll_deg=90))[0, 50]
    assert upper[0] > 0.6 and abs(upper[1]) < 0.02  # what was to the right is now at the top


def test_straight_lines_stay_straight() -> None:
    """A great circle (here: a tilted one) is a straight line in every view."""
    directions = compass_panorama(2048)
    height_above = directions @ np.array([0.3, 0.9, 0.2], np.float32)
    panorama = np.where(height_above > 0, 255, 0).astype(np.uint8)
    shown = Panorama(np.dstack([panorama] * 3)).view(View(20, 10, 100, 400, 400))[..., 0].astype(float) / 255
    edge = shown.shape[0] - shown.sum(axis=0)  # in every column, the row where the bright half begins from below
    inside = (edge > 2) & (edge < 398)
    columns = np.arange(400)[inside]
    fitted = np.polyfit(columns, edge[inside], 1)
    assert inside.sum() > 200
    assert np.abs(np.polyval(fitted, columns) - edge[inside]).max() < 1.0


def test_a_finer_panorama_is_averaged_not_sampled() -> None:
    view = View(0, 0, 100, 100, 100)
    panorama = Panorama(noise(2048))
    assert panorama.view(view).std() > 40
    assert panorama.view(view, panorama.fineness(view)).std() < 15
    smooth = Panorama(((compass_panorama() + 1) * 127).astype(np.uint8))
    assert smooth.fineness(view) == 4
    assert np.abs(smooth.view(view, 4).astype(int) - smooth.view(view)).max() <= 2
    assert smooth.fineness(View(0, 0, 90, 1024, 768)) == 1
    assert smooth.fineness(View(0, 0, 170, 16, 16)) == 8


@given(st.floats(-1000, 1000), st.floats(0, 360))
def test_bearings(bearing: float, compass: float) -> None:
    yaw = yaw_of_bearing(bearing, compass)
    assert -180 <= yaw < 180
    assert abs(turn(compass + yaw - bearing)) < 1e-5


def test_bearings_by_hand() -> None:
    assert yaw_of_bearing(90, 90) == 0
    assert yaw_of_bearing(10, 350) == 20
    assert yaw_of_bearing(350, 10) == -20
    assert yaw_of_bearing(0, 180) == -180


@pytest.mark.parametrize(
    ("given_view", "words"),
    [
        ({"pitch_deg": 91}, "pitch 91 is not between -90"),
        ({"fov_deg": 180}, "fov 180 is not between 1 and 170"),
        ({"fov_deg": 0}, "fov 0 "),
        ({"yaw_deg": math.nan}, "yaw nan is not a number"),
        ({"width": 8}, "width 8 is not between 16 and 8192"),
        ({"height": 9000}, "height 9000"),
        ({"width": 8000, "height": 8000}, "size 8000x8000"),
    ],
)
def test_views_that_cannot_be(given_view: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        View(**given_view)  # type: ignore[arg-type]


def test_a_picture_that_is_no_panorama() -> None:
    with pytest.raises(ValueError, match="400 x 300 is not a full panorama"):
        Panorama(np.zeros((300, 400, 3), np.uint8))


def test_the_maps_of_the_last_views_are_kept_within_a_bound_of_memory() -> None:
    for yaw in range(40):
        view = View(yaw, 0, 90, 1000, 800)  # 40 of them take more than is kept
        maps = view_maps(64, 32, view, 1)
        assert view_maps(64, 32, view, 1) is maps
        assert view_maps.cache.currsize <= view_maps.cache.maxsize < 40 * (maps[0].nbytes + maps[1].nbytes)


@pytest.mark.parametrize(("width", "height"), [(8192, 64), (64, 8192)])
def test_a_long_view_of_a_fine_panorama_is_sampled_no_finer_than_can_be_cut(width: int, height: int) -> None:
    panorama = Panorama(noise(64))
    panorama.width, panorama.height = 16_384, 8192  # as fine as one can be stored, without its 400 MB
    view = View(0, 0, 170, width, height)
    assert panorama.fineness(view) == 3
    assert panorama.view(view, panorama.fineness(view)).shape == (height, width, 3)
