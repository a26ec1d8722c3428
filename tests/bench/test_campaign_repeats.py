"""Whose fault a repeated request is, on journals written by hand."""

from bench.campaign_checks import LaterRun, Repeats, by_part, count_repeats, rules, things, wrong_requests
from infra.offline.faults import KINDS, STATUSES, parse

CDN, GRAPH, TILES = "mapillary-cdn", "mapillary", "mapillary-tiles"


def picture(number: int, end: str = "AB") -> str:
    return f"GET /mapillary-cdn/m/{number}/original.jpg?oe={end}&oh=00{end}"


def details(number: int) -> str:
    return f"GET /mapillary/{number}?fields=id,thumb_original_url"


def many(*numbers: int) -> str:
    return f"GET /mapillary/?ids={','.join(map(str, numbers))}&fields=id,thumb_original_url"


BOX = "GET /mapillary/images?bbox=1.0,2.0,1.1,2.1&fields=id&limit=2000"


def test_signatures_do_not_make_another_picture_but_kinds_make_another_box() -> None:
    assert things(CDN, picture(7)) == things(CDN, picture(7, "CD")) == [("picture 7", "7")]
    assert things(GRAPH, details(7)) == [("details 7", "7")]
    assert things(GRAPH, BOX) != things(GRAPH, f"{BOX}&is_pano=true") != things(GRAPH, f"{BOX}&is_pano=false")
    assert things(GRAPH, BOX) == things(GRAPH, BOX.replace("limit=2000", "limit=10"))
    assert things(TILES, "GET /tiles/14/1/2?") != things(TILES, "GET /tiles/14/1/3?")
    assert things(GRAPH, many(7, 8)) == [*things(GRAPH, details(7)), *things(GRAPH, details(8))]
    assert things(GRAPH, f"{many(7)},width") != things(GRAPH, many(7))


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
    found = count_repeats(reversed(journal), [10.0, 15.0], [LaterRun(20.0, ((2.05, 1.05),))], lambda _: (2.05, 1.05))
    assert (found.distinct, found.faults, found.unheard) == (5, 3, 1)
    # Picture 8 is first asked for before the kills and again after them: that is the kill's, too.
    assert found.by_kill == [3, 0]
    assert (found.by_fault, found.careless, found.examples) == (1, 1, ["box mapillary 1.0,2.0,1.1,2.1 "])
    assert found.careless_share == 0.2


def test_a_later_run_excuses_only_what_had_failed() -> None:
    """Places that were done need no question, whenever it is sent."""
    tile = "GET /mapillary-tiles/maps/vtp/mly1_public/2/14/8239/8100?"
    scene, search = "GET /blob/a/b/B02.tif? bytes=0-99", "POST /stac/api/stac/v1/search? ab12"
    first = [
        (1.0, GRAPH, BOX),
        (1.1, GRAPH, details(7)),
        (1.2, TILES, tile),
        (1.3, "blob", scene),
        (1.4, "stac", search),
    ]
    journal = [(moment + late, service, request, "ok") for late in (0.0, 2.0) for moment, service, request in first]

    def counts(run: LaterRun) -> tuple[int, int]:
        found = count_repeats(journal, [], [run], lambda image_id: (2.06, 1.04) if image_id == "7" else None)
        return found.by_fault, found.careless

    here, far = (2.05, 1.05), (2.05, 1.35)
    assert counts(LaterRun(2.0)) == (0, 5)
    assert counts(LaterRun(2.0, (far,))) == (0, 5)
    assert counts(LaterRun(2.0, (far, here))) == (3, 2)
    assert counts(LaterRun(2.0, scenes=True)) == (2, 3)
    assert counts(LaterRun(9.0, (here,), scenes=True)) == (0, 5)


def test_pieces_of_a_scene_are_different_things_and_signatures_none() -> None:
    piece = "GET /blob/a/b/B02.tif?"
    journal = [(1.0, "blob", f"{piece} bytes=0-9", "ok"), (2.0, "blob", f"{piece} bytes=10-19", "ok")]
    journal += [(moment, "sas", "GET /sas/token?", "ok") for moment in (1.0, 2.0)]
    found = count_repeats(journal, [])
    assert (found.distinct, found.careless) == (2, 0)
    assert by_part([*journal, (3.0, GRAPH, BOX, "ok")]) == {"streets": [(3.0, GRAPH, BOX, "ok")], "scenes": journal}


def test_faults_are_of_every_kind_and_together_the_share_that_is_asked_for() -> None:
    found, _ = parse({"rules": rules(0.2, late=True)})
    assert {rule.kind for rule in found} == set(KINDS) - {"latency"}  # slow_drip is the worse of the two
    assert {rule.status for rule in found if rule.kind == "status"} == set(STATUSES) - {402}
    for service in ("mapillary", "mapillary-cdn", "mapillary-tiles", "stac", "sas", "blob"):
        passes = 1.0
        for rule in found:
            if rule.service == service and rule.kind not in ("slow_drip", "clock_skew", "deleted", "changed"):
                passes *= 1 - rule.rate
        assert abs(1 - passes - 0.2) < 1e-9
    assert "changed" not in {rule["kind"] for rule in rules(0.2)}


def test_nothing_asked_is_nothing_repeated() -> None:
    found = count_repeats([], [1.0])
    assert (found.distinct, found.by_kill, found.careless_share) == (0, [0], 0.0)


def test_a_request_for_many_is_a_repeat_when_one_of_them_is() -> None:
    journal = [
        (1.0, GRAPH, many(7, 8), "ok"),
        (2.0, GRAPH, many(9), "ok"),
        # killed at 3
        (4.0, GRAPH, many(8, 10), "ok"),
        (5.0, CDN, picture(10), "expired_url"),
        (6.0, GRAPH, details(10), "ok"),
        (7.0, GRAPH, many(9, 10), "ok"),  # of 9 a kill's, of 10 nobody's but ours: the worse one counts, once
    ]
    found = count_repeats(journal, [3.0])
    assert (found.distinct, found.by_kill, found.by_fault, found.careless) == (2, [1], 1, 1)


def test_repeats_by_kills_and_careless_ones_fail_together() -> None:
    assert wrong_requests(Repeats(distinct=100, careless=2, by_kill=[1, 1], by_fault=50)) == []
    (said,) = wrong_requests(Repeats(distinct=100, careless=2, by_kill=[1, 2], examples=["box 1"]))
    assert said.startswith("5.0%") and "2 carelessly (box 1)" in said and "3 after kills [1, 2]" in said
    assert Repeats(distinct=100, careless=2, by_kill=[1, 2], unheard=5).with_unheard_share == 0.1
