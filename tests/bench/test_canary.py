"""The search for secrets finds what is planted; every secret of the settings has a canary."""

import json
from pathlib import Path

from bench.canary import Search, handed_over, missed_leaks, new_canaries, secret_variables
from schemas.settings.base import Settings
from schemas.settings.models import ModelEndpoint, ModelsSettings


def test_a_planted_leak_is_found_in_every_spelling_and_kind_of_file(tmp_path: Path) -> None:
    assert missed_leaks(tmp_path / "control") == []


def test_what_holds_no_secret_gives_no_hit(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"key": "Canary0123456789", "other": "a%20b\\u0041"}))
    search = Search({"KEY": "Canary9999999999"})
    search.folder(tmp_path)
    assert not search.hits and search.places == 1


def test_every_secret_of_the_settings_has_a_canary_also_one_that_is_new() -> None:
    found = new_canaries()
    wanted = "MAPILLARY_TOKEN TAVILY_API_KEY AMAP_KEY GOOGLE_MAPS_KEY OPENAI_API_KEY GEOFIX_WEBHOOK HF_TOKEN"
    assert {*wanted.split(), "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "PREFECT_API_AUTH_STRING"} <= found.keys()
    assert len(set(found.values())) == len(found)

    class New(Settings):
        password_env: str = "NEW_PASSWORD"
        models: ModelsSettings = ModelsSettings(
            endpoints={"own": ModelEndpoint(base_url="https://models.example.org/v1", key_env="OWN_KEY")}
        )

    assert secret_variables({"new": [New()]}) == {"NEW_PASSWORD", "OWN_KEY"}


def test_only_a_private_handover_is_left_out(tmp_path: Path) -> None:
    attempt = tmp_path / "prefect-workspace-attempt-1"
    attempt.mkdir(0o700)
    (attempt / "workspace.json").write_text("{}")
    (attempt / "workspace.json").chmod(0o600)
    assert handed_over(tmp_path) == [attempt / "workspace.json"]
    (attempt / "workspace.json").chmod(0o644)
    assert handed_over(tmp_path) == []
    (attempt / "workspace.json").chmod(0o600)
    attempt.chmod(0o755)
    assert handed_over(tmp_path) == []
