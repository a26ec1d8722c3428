"""A model that its service does not offer is refused before anything starts, with those that are."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows import offered
from flows.cli import app
from flows.offered import check_models, refuse_equal_agents
from infra.offline.server import create_app, serving
from infra.offline.world import World
from schemas.errors import InputError
from schemas.load import ConfigError, load_config


@pytest.fixture(scope="module")
def chat() -> Iterator[str]:
    """Settings that name a chat service on a real socket."""
    with serving(create_app(World(seed=7, size=50, pano_width=512), warm=False)) as address:
        yield f"services.chat.base_url={address}/openai/v1"


@pytest.mark.parametrize(
    ("stage", "setting"),
    [
        ("evaluate", "evaluate.policies=[answerer-base, gpt-9]"),
        ("difficulty", "difficulty.policy=gpt-9"),
        ("synthesize", "synthesize.planner=gpt-9"),
        ("curate", "curate.judge.model=gpt-9"),
    ],
)
def test_an_unknown_model_is_refused_with_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chat: str, stage: str, setting: str
) -> None:
    monkeypatch.chdir(tmp_path)
    sets = [word for one in (chat, setting, "offline.serve=false") for word in ("--set", one)]
    done = CliRunner().invoke(app, [stage, *sets])
    assert done.exit_code == 2, done.output
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("geofix: ")]
    assert f"geofix: {setting.partition('=')[0]}: " in line
    assert "offers no model 'gpt-9'; it offers " in line and "answerer-large" in line
    assert list(tmp_path.iterdir()) == [], "nothing was started or written"


def test_a_name_that_is_nearly_right_is_corrected(chat: str) -> None:
    config = load_config(overrides=[chat, "evaluate.policies=[answerer-bse]", "offline.serve=false"])
    with pytest.raises(InputError, match="did you mean 'answerer-base'"):
        check_models(config, ["evaluate"])
    check_models(config, ["plan", "collect", "difficulty"])


def test_shipped_models_of_the_offline_world_need_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offered, "_offered", lambda config: pytest.fail("asked"))
    check_models(load_config(), ["curate", "synthesize", "difficulty", "evaluate"])


def test_a_service_that_lists_nothing_is_no_obstacle(chat: str) -> None:
    nowhere = chat.replace("/openai/v1", "/nothing")
    check_models(load_config(overrides=[nowhere, "offline.serve=false", "difficulty.policy=mine"]), ["difficulty"])


def test_two_roles_of_a_swarm_that_are_one_model_are_refused() -> None:
    """smileGeo: what helps is that agents know different things; one model as several persons is said as such."""
    config = load_config(recipe="smilegeo", profile="production")
    roles = {role: config.models.role(role) for role, _ in config.evaluate.swarm.cast}
    assert len({(one.endpoint, one.model) for one in roles.values()}) == len(roles) == 5
    refuse_equal_agents(config, ["train", "evaluate"])
    same = ["models.roles.swarm-claude={endpoint: chat, model: gpt-4o-mini}"]
    config = load_config(recipe="smilegeo", profile="production", overrides=same)
    with pytest.raises(InputError, match="swarm-gpt and swarm-claude are one model, 'gpt-4o-mini' of chat"):
        refuse_equal_agents(config, ["evaluate"])
    refuse_equal_agents(config, ["curate"])
    personas = ["evaluate.swarm.agents=[swarm-gpt, swarm-gpt as europe]"]
    refuse_equal_agents(load_config(recipe="smilegeo", profile="production", overrides=personas), ["evaluate"])


def test_the_sizes_of_smilegeo_s_figures_are_settings() -> None:
    """Figure 2: up to 13 agents; figure 3: K and R up to 8."""
    thirteen = f"evaluate.swarm.agents=[{', '.join(f'model-{n}' for n in range(13))}]"
    large = [thirteen, "evaluate.swarm.answerers=8", "evaluate.swarm.reviewers=8"]
    swarm = load_config(recipe="smilegeo", profile="production", overrides=large).evaluate.swarm
    assert (len(swarm.agents), swarm.answerers, swarm.reviewers) == (13, 8, 8)
    with pytest.raises(ConfigError, match="answerers: 8 cannot be elected of 5 agents"):
        load_config(recipe="smilegeo", profile="production", overrides=large[1:])
