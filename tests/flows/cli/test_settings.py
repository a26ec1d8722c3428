"""`geofix settings`: what one sees is what --set takes."""

import json

import pytest

from flows.cli.command import Call, UsageError
from flows.cli.settings import show_settings


def test_a_field_a_line_in_a_pipe_with_what_the_profile_made_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_settings(Call(overrides=["plan.spacing_km=3"]), "plan") == 0
    lines = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "12 (default 7)" in lines["plan.seed"] and "0.6 (default 0.8)" in lines["plan.split.train"]
    assert lines["plan.spacing_km"].startswith("plan.spacing_km  3.0 (default 1.0)  (number, at least 0, at most 500)")
    assert all(name.startswith("plan.") for name in lines)
    assert show_settings(Call(profile="production"), "plan.seed") == 0
    assert capsys.readouterr().out.startswith("plan.seed  7  (whole number, at least 0)  ")


def test_on_a_screen_sections_have_headings_and_nothing_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert show_settings(Call(), "services.mapillary") == 0
    shown = capsys.readouterr().out
    assert "services.mapillary" in shown and "base_url" in shown and "…" not in shown
    assert show_settings(Call(), None) == 0
    shown = capsys.readouterr().out
    assert "collect.satellite" in shown and "geofix settings plan" in shown


def test_a_name_without_its_section_finds_all_such_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_settings(Call(as_json=True), "seed") == 0
    names = [one["name"] for one in json.loads(capsys.readouterr().out)]
    assert {"plan.seed", "train.seed", "offline.seed"} <= set(names)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no setting or section 'plan.place'; did you mean 'plan.places'\?"):
        show_settings(Call(), "plan.place")


def test_a_key_that_is_not_the_offline_worlds_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    key = "MLY|1|real"
    for as_json in (False, True):
        call = Call(overrides=[f"services.mapillary.public_key={key}"], as_json=as_json)
        assert show_settings(call, "services.mapillary") == 0
        shown = capsys.readouterr().out
        assert key not in shown and "(given)" in shown
