"""Pictures show what the place is: side of the road, colours of its lines, text of its signs."""

import numpy as np
import pytest

from infra.offline.render import encode, paint, render_jpeg
from infra.offline.render.canvas import Camera
from infra.offline.render.signs import board_texture
from infra.offline.words import WORDS, fold
from infra.offline.world import World


@pytest.fixture(scope="module")
def world() -> World:
    return World(seed=7, size=3000, pano_width=2048)


def clear_panorama(world, wanted):
    for index in range(world.size):
        if wanted(world.sign_texts(index)):
            for record in world.images(index):
                if record.is_pano and record.condition == "clear":
                    return record
    raise AssertionError("no such place in this world")


def yellow(image) -> np.ndarray:
    r, g, b = (np.asarray(image, dtype=int)[..., c] for c in range(3))
    return (r > 190) & (g > 140) & (b < 110) & (r - b > 110)


def yellow_columns_ahead(world, record) -> float:
    """Mean column of yellow paint on the road ahead, from the middle of the picture, as a share of its width."""
    image = paint(world, record)
    width, height = image.size
    ahead = yellow(image)[int(height * 0.54) : int(height * 0.72), width // 4 : 3 * width // 4]
    columns = np.nonzero(ahead)[1]
    assert len(columns) > 200
    return float(columns.mean() / ahead.shape[1] - 0.5)


def test_centre_line_is_left_of_the_car_where_traffic_drives_right(world):
    record = clear_panorama(world, lambda p: p.country == "US" and p.setting == "suburb")
    assert yellow_columns_ahead(world, record) < -0.02


def test_centre_line_is_right_of_the_car_where_traffic_drives_left(world):
    record = clear_panorama(world, lambda p: p.country == "TH" and p.setting == "suburb")
    assert yellow_columns_ahead(world, record) > 0.02


def test_white_lines_have_no_yellow(world):
    record = clear_panorama(world, lambda p: p.country == "PL" and p.setting == "centre")
    image = paint(world, record)
    assert yellow(image)[int(image.height * 0.6) :].mean() < 0.0005


def test_exact_duplicates_are_the_same_bytes_and_near_ones_are_not(world):
    exact = next(r for i in range(500) for r in world.images(i) if r.condition == "exact_duplicate")
    assert render_jpeg(world, exact) == render_jpeg(world, world.images(exact.place)[exact.slot - 1])
    near = next(r for i in range(500) for r in world.images(i) if r.condition == "near_duplicate" and not r.is_pano)
    one = np.asarray(paint(world, near), dtype=float)
    other = np.asarray(paint(world, world.images(near.place)[near.slot - 1]), dtype=float)
    assert one.shape == other.shape
    assert 0 < np.abs(one - other).mean() < 25


def test_conditions_show(world):
    def picture(condition):
        return np.asarray(
            paint(world, next(r for i in range(900) for r in world.images(i) if r.condition == condition)).convert("L"),
            float,
        )

    def sharpness(grey):
        # Grain is everywhere; edges stand out over eight pixels.
        return np.abs(grey[:, 8:] - grey[:, :-8])[grey.shape[0] // 3 : grey.shape[0] // 2].mean()

    clear, blurred, dark = picture("clear"), picture("blurred"), picture("dark")
    assert dark.mean() < 40 < clear.mean()
    assert sharpness(blurred) < 0.7 * sharpness(clear)


def test_bytes_do_not_depend_on_what_was_painted_before(world):
    record = world.images(11)[0]
    alone = render_jpeg(World(seed=7, size=3000, pano_width=2048), record)
    for index in range(3):
        paint(world, world.images(index)[0])
    assert render_jpeg(world, record) == alone


def test_a_panorama_closes_at_its_seam(world):
    record = clear_panorama(world, lambda p: p.setting == "centre")
    grey = np.asarray(paint(world, record).convert("L"), dtype=float)
    seam = np.abs(grey[:, 0] - grey[:, -1]).mean()
    inside = np.abs(grey[:, 1:] - grey[:, :-1]).mean()
    assert seam < 3 * inside + 3


def test_jpegs_carry_no_metadata_and_have_the_promised_size(world):
    record = world.images(2)[0]
    image = paint(world, record)
    assert image.size == (record.width, record.height)
    assert b"Exif" not in encode(image)[:200]


def test_both_cameras_agree_where_a_point_is():
    pano = Camera(4096, 2048, 1.7, 2.4, 5.0)
    photo = Camera(1600, 1200, 1.7, 2.4, 5.0, yaw_deg=20.0, fov_deg=70.0, horizon=0.5)
    point = np.array([[6.0, 3.0, 25.0]])
    column, row, _ = pano.project(point)
    azimuth, height = (column[0] - 2048) / pano.focal_px, (1024 - row[0]) / pano.focal_px
    u, v, _ = photo.project(point)
    assert np.arctan((u[0] - 800) / photo.focal_px) + np.radians(20.0) == pytest.approx(azimuth)
    ray = photo.rays(np.array([u[0] - 0.5]), np.array([v[0] - 0.5]))[0, 0]
    assert np.arctan2(ray[1], np.hypot(ray[0], ray[2])) == pytest.approx(height)


@pytest.fixture(scope="module")
def ocr():
    from rapidocr import RapidOCR

    return RapidOCR()


@pytest.mark.parametrize("language", ["fr", "pl", "tr", "vi", "ru", "ja", "zh-TW"])
def test_painted_letters_are_ones_the_packaged_ocr_reads(ocr, language):
    word = WORDS[language].pharmacy
    texture = board_texture((word,), (max(120, 26 * len(word)), 48), (250, 250, 250), (20, 60, 130), (0.55,))
    found = ocr(np.ascontiguousarray(np.asarray(texture)[..., ::-1]), use_det=False, use_cls=False, use_rec=True)
    assert fold(found.txts[0]) == fold(word)


def test_a_sign_in_a_panorama_is_read(ocr):
    world = World(seed=7, size=3000, pano_width=4096)
    record = clear_panorama(world, lambda p: p.language == "fr" and p.setting == "centre")
    place = world.place(record.place)
    names = {fold(sign.lines[0].split()[-1]) for sign in place.shops} | {fold(place.street.split()[-1])}
    picture = paint(world, record)
    texts = []
    for left in (2048, 1024, 0, 3072):  # the street ahead first: the boards face it
        part = np.ascontiguousarray(np.asarray(picture.crop((left, 760, left + 1024, 1240)))[..., ::-1])
        texts.append(fold(" ".join(ocr(part, use_det=True, use_cls=False, use_rec=True).txts or ())))
        if any(name in texts[-1] for name in names):
            return
    raise AssertionError((names, texts))
