"""Whose fault a repeated request is, on journals written by hand."""

from bench.campaign_repeats import count_repeats, thing

CDN, GRAPH, TILES = "mapillary-cdn", "mapillary", "mapillary-tiles"


def picture(number: int, end: str = "AB") -> str:
    return f"GET /mapillary-cdn/m/{number}/original.jpg?oe={end}&oh=00{end}"


def details(number: int) -> str:
    return f"GET /mapillary/{number}?fields=id,thumb_original_url"


BOX = "GET /mapillary/images?bbox=1.0,2.0,1.1,2.1&fields=id&limit=2000"


def test_signatures_do_not_make_another_picture_but_kinds_make_another_box() -> None:
    assert thing(CDN, picture(7)) == thing(CDN, picture(7, "CD")) == ("picture 7", "7")
    assert thing(GRAPH, details(7)) == ("details 7", "7")
    assert thing(GRAPH, BOX) != thing(GRAPH, f"{BOX}&is_pano=true") != thing(GRAPH, f"{BOX}&is_pano=false")
    assert thing(GRAPH, BOX) == thing(GRAPH, BOX.replace("limit=2000", "limit=10"))
    assert thing(TILES, "GET /tiles/14/1/2?") != thing(TILES, "GET /tiles/14/1/3?")


def test_every_repeat_has_one_cause() -> None:
    journal = [
        (1.0, GRAPH, BOX, "ok"),
        (2.0, CDN, picture(7), "ok"),
        (3.0, CDN, picture(8), "expired_url"),
        (4.0, GRAPH, details(8), "ok"),
        (5.0, CDN, picture(8), "truncate"),
        (6.0, GRAPH, details(8), "ok"),  # the address had expired again: the fault's doing
        (7.0, CDN, picture(8), "ok"),
        (8.0, GRAPH, BOX, "ok"),  # nothing happened: careless
        (9.0, CDN, picture(9), "gone"),  # killed before it came: no answer, so what follows is no repeat
        # killed at 10
        (10.5, CDN, picture(9), "ok"),
        (11.0, GRAPH, BOX, "ok"),
        (12.0, CDN, picture(7), "ok"),
        (13.0, CDN, picture(7), "500"),
        # a later run from 20 on
        (21.0, CDN, picture(8), "ok"),
    ]
    found = count_repeats(reversed(journal), [10.0, 15.0], [20.0])
    assert (found.distinct, found.faults, found.unheard) == (5, 3, 1)
    # Picture 8 is first asked for before the kills and again after them: that is the kill's, too.
    assert found.by_kill == [3, 0]
    assert (found.by_fault, found.careless, found.examples) == (1, 1, ["box 1.0,2.0,1.1,2.1 "])
    assert found.careless_share == 0.2


def test_nothing_asked_is_nothing_repeated() -> None:
    found = count_repeats([], [1.0])
    assert (found.distinct, found.by_kill, found.careless_share) == (0, [0], 0.0)
