"""The papers' tables: every row's settings exist, and the printed figures agree with each other and with the papers."""

import json

import pytest

from schemas.errors import InputError
from schemas.load import load_config, profile_names
from schemas.paper_tables import PaperTable, is_recipe, load_paper, papers
from tasks.evaluate.reproduction import is_share
from tasks.recipes.recipe import RECIPES

NAMES = sorted(papers())
TABLES = [(name, table) for name in NAMES for table in load_paper(name).tables]
RUN = [(name, table) for name, table in TABLES if table.cannot is None]


def test_all_papers_are_there_with_every_table_and_figure() -> None:
    counts = {
        name: tuple(
            len({t.number.split("-")[0] for t in load_paper(name).tables if t.kind == k}) for k in ("table", "figure")
        )
        for name in NAMES
    }
    assert counts == {
        "spotagent": (9, 12),
        "geovista": (4, 9),
        "geoagent": (6, 14),
        "thinking-with-map": (9, 6),
        "smilegeo": (6, 6),
        "reverse": (2, 0),  # of ours: its paper's were not at hand
    }
    assert sum(is_recipe(name) for name, _ in RUN) >= 20


@pytest.mark.parametrize(("name", "table"), RUN, ids=lambda one: one if isinstance(one, str) else one.label)
def test_every_row_is_a_configuration(name: str, table: PaperTable) -> None:
    """Its settings exist and may have these values; its phases make its policy; its tools exist."""
    if not is_recipe(name):
        return
    for row in table.rows:
        for profile in [one for one in profile_names() if one != "open"]:  # which asks no model
            settings = {**table.settings, **row.settings, **row.by_profile.get(profile, {})}
            chosen = [f"{field}={json.dumps(value)}" for field, value in settings.items()]
            config = load_config(recipe=name, profile=profile, overrides=chosen)
            assert row.policy in (None, "base", *config.train.phases)
            tools = {*RECIPES[name].prompt.tools, *RECIPES[name].further_tools, "all"}
            assert {*config.evaluate.tools} <= tools
            for field in (*row.shares, *([row.role.setting] if row.role else [])):
                value: object = config
                for step in field.split("."):
                    value = getattr(value, step)


@pytest.mark.parametrize(("name", "table"), RUN, ids=lambda one: one if isinstance(one, str) else one.label)
def test_rows_that_are_compared_differ(name: str, table: PaperTable) -> None:
    """Two rows of one policy with the same settings would show the same figures."""
    seen = [
        json.dumps([row.policy, row.answer, row.settings, row.by_profile, row.shares, row.of, row.role and row.name])
        for row in table.rows
        if row.policy or row.answer
    ]
    assert len(seen) == len(set(seen))


def printed(name: str, number: str, row: str) -> tuple[float | None, ...]:
    return next(one.printed for one in load_paper(name).find("table", number).rows if one.name == row)


def test_printed_figures_agree_with_each_other() -> None:
    """Figures that a paper prints in several places, or that follow from others, as a check of each."""
    full = printed("spotagent", "3", "Full Toolset")
    assert full == printed("spotagent", "1", "SpotAgent")[:5] == printed("spotagent", "4", "Dynamic Filtering")
    assert full == printed("spotagent", "5", "+ RL") == printed("spotagent", "6", "Tavily")
    assert printed("spotagent", "6", "Baseline") == printed("spotagent", "3", "GC & VZ")
    for row in load_paper("spotagent").find("table", "8").rows:
        assert sum(one or 0 for one in row.printed) == pytest.approx(100, abs=0.02)
    assert printed("geovista", "4", "Geo-Vista-7B")[1:] == printed("geovista", "2", "Geo-Vista-7B")[3:]
    assert printed("geovista", "4", "Qwen-2.5-VL")[0] == printed("geovista", "3", "Qwen2.5-VL-7B")[1]
    assert printed("geoagent", "3", "GeoAgent-SFT") == printed("geoagent", "2", "GeoAgent-SFT")[:3]
    assert printed("geoagent", "4", "GeoAgent w/o Con") == printed("geoagent", "3", "GeoAgent w/o Con")
    # Thinking with Map: 599 easy and 1,901 hard pictures are all of MAPBench.
    for row, whole in (
        ("Qwen3-VL-30B-A3B", printed("thinking-with-map", "5", "Qwen3-VL-30B-A3B")),
        ("+ Thinking with Map", printed("thinking-with-map", "5", "+ map_tool")),
        ("+ Reinforcement Learning", printed("thinking-with-map", "9", "GRPO")),
    ):
        parts = printed("thinking-with-map", "3", row)
        mixed = [
            (599 * (easy or 0) + 1901 * (hard or 0)) / 2500 for easy, hard in zip(parts[:6], parts[6:], strict=True)
        ]
        assert mixed == pytest.approx([one or 0 for one in whole], abs=0.06)
    assert printed("thinking-with-map", "6", "Verifier@4, Qwen3-VL-235B-A22B") == printed(
        "thinking-with-map", "3", "+ Parallel x4 & Verifier"
    )


# Rows copied from the papers a second time.
STATED = {
    ("spotagent", "2", "Tool-assisted"): (19.65, 38.60, 50.18, 60.00, 82.81),
    ("spotagent", "5", "+ SFT & Cold Start"): (10.03, 33.67, 50.62, 66.88, 80.77),
    ("spotagent", "9", "Qwen3-VL-30B"): (10.94, 36.40, 54.29, 73.34, 86.42),
    ("geovista", "4", "w/o HR"): (4.11, 75.0, 68.95, 40.68),
    ("geovista", "3", "Thyme-RL-7B"): (29.88, 880.97),
    ("geoagent", "3", "GeoAgent w/o Spa & Sem"): (9.08, 20.03, 40.43),
    ("geoagent", "4", "GeoAgent-SFT + Judge + Con"): (11.04, 26.13, 51.76),
    ("thinking-with-map", "9", "PKPO"): (16.97, 19.35, 26.43, 30.15, 36.68, 50.41),
    ("smilegeo", "2", "LLM Debate"): (57.0119, 260756),
    ("smilegeo", "6", "10"): (2182, 62.8141),
}


@pytest.mark.parametrize("stated", list(STATED), ids=" ".join)
def test_a_sample_of_printed_figures(stated: tuple[str, str, str]) -> None:
    assert printed(*stated) == STATED[stated]


def test_shares_are_in_per_cent_and_the_rest_is_not() -> None:
    columns = {name: one for _, table in RUN for name, one in table.columns.items()}
    assert is_share(columns["25km"]) and is_share(columns["City (Panorama)"]) and is_share(columns["Pass@k = 8"])
    assert not any(is_share(columns[one]) for one in ("Median distance (km)", "GeoScore", "Tks", "Tool calls"))
    assert not is_share(columns["reward at the end"])


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(InputError, match="--table 12: the paper has 1, 2, 3"):
        load_paper("spotagent").find("table", "12")
    with pytest.raises(InputError, match="--figure 7: it has parts 7-left, 7-right"):
        load_paper("geovista").find("figure", "7")
    with pytest.raises(InputError, match="there is no paper 'nobody'"):
        load_paper("nobody")
