"""Configuration in layers: later ones win, and a wrong value names file, field, what was given and what is allowed."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config import Config
from schemas.load import ConfigError, load_config, profile_names
from schemas.recipes import recipe_folders


def test_every_shipped_recipe_and_profile_loads() -> None:
    for recipe in recipe_folders():
        for profile in profile_names():
            config = load_config(recipe=recipe, profile=profile)
            assert (config.recipe, config.profile) == (recipe, profile)


def test_later_layers_win_field_by_field(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("plan:\n  places: 50\n  seed: 3\nlake: from-file\n")
    config = load_config(file=file, overrides=["plan.places=70", "train.grpo.kl=0.5"], lake="from-option")
    assert config.plan.places == 70
    assert config.plan.seed == 3
    assert config.train.grpo.kl == 0.5
    assert config.lake == "from-option"
    assert config.difficulty.k == 8, "the recipe's value stands where nobody changes it"


def test_a_file_may_name_recipe_and_profile(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("profile: production\n")
    assert load_config(file=file).services.mapillary.base_url == "https://graph.mapillary.com"
    assert load_config(file=file, profile="offline").profile == "offline"


def test_production_never_sends_the_offline_worlds_keys() -> None:
    """Also to a tunnel or a mirror on this machine, which looks like the offline world by its address."""
    tunnels = [f"services.{service}.base_url=http://127.0.0.1:9000/api" for service in ("mapillary", "search", "chat")]
    services = load_config(profile="production", overrides=tunnels).services
    for service, variable in (
        (services.mapillary, "MAPILLARY_TOKEN"),
        (services.search, "TAVILY_API_KEY"),
        (services.chat, "OPENAI_API_KEY"),
    ):
        assert (service.base_url, service.public_key) == ("http://127.0.0.1:9000/api", None)
        assert service.key_env == variable
    assert services.mapillary.tiles_url.startswith("https://tiles.mapillary.com/")
    assert services.mapillary.search_per_minute == 9_000
    assert load_config(profile="offline").services.mapillary.public_key is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plan: {places: many}", r"own\.yaml: plan\.places: given 'many'; must be a whole number, at least 1"),
        ("plan: {places: 0}", r"own\.yaml: plan\.places: given 0; must be a whole number, at least 1"),
        ("plan: {plces: 3}", r"own\.yaml: plan\.plces: no such field; did you mean 'plan\.places'\? allowed: places, "),
        ("pln: {}", r"own\.yaml: pln: no such field; did you mean 'plan'\?"),
        ("plan: 3", r"own\.yaml: plan: given 3; must be a mapping with places, preset"),
        ("plan: [1", r"own\.yaml, line 1: not YAML"),
        ("- plan", r"own\.yaml: must be a mapping of sections"),
        ("plan: {weights: {roads: 0.9}}", r"own\.yaml: plan\.weights: the quota weights must sum to 1"),
        ("train: {grpo: {kl: -1}}", r"own\.yaml: train\.grpo\.kl: given -1"),
        ("plan: {countries: [FR, xx]}", r"own\.yaml: plan\.countries\.1: given 'xx'; 'xx' is not an ISO 3166"),
    ],
)
def test_a_wrong_value_in_a_file_is_explained(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(file=file)
    assert "\n" not in str(caught.value), "one line a mistake"


def test_norway_is_a_country(tmp_path: Path) -> None:
    """YAML 1.1 takes NO for false; so it does with words such as off and yes, which may be meant as words."""
    assert load_config(overrides=["plan.countries=[NO, SE]"]).plan.countries == ("NO", "SE")
    file = tmp_path / "own.yaml"
    file.write_text("plan:\n  countries: [NO]\n  exclude: [NO, AQ]\n  within_cell: off\n")
    with pytest.raises(ConfigError, match=r"plan\.within_cell: given 'off'"):
        load_config(file=file)
    for word, meant in (("no", False), ("Yes", True), ("off", False), ("true", True), ("False", False)):
        assert load_config(overrides=[f"offline.serve={word}"]).offline.serve is meant


def test_a_list_of_one_is_shown_as_it_is_written() -> None:
    with pytest.raises(ConfigError, match=r"plan\.countries: given 'FR'; must be a list, such as \[FR\]"):
        load_config(overrides=["plan.countries=FR"])


def test_every_mistake_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=["plan.places=0", "difficulty.k=1"])
    assert len(str(caught.value).splitlines()) == 2


def test_a_pasted_key_is_not_echoed() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=["services.chat.key_env=sk-secret-123"])
    assert "sk-secret" not in str(caught.value)


def test_a_number_of_tokens_is_no_key() -> None:
    with pytest.raises(ConfigError, match=r"difficulty.max_tokens: given 32; must be"):
        load_config(overrides=["difficulty.max_tokens=32"])


@pytest.mark.parametrize("text", ["places", "=3", "plan.places"])
def test_an_override_without_its_parts_is_explained(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must look like section\.field=value"):
        load_config(overrides=[text])


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"unknown recipe 'spotagnt'; did you mean 'spotagent'\?"):
        load_config(recipe="spotagnt")
    with pytest.raises(ConfigError, match=r"unknown profile 'prod'.*offline, open, production"):
        load_config(profile="prod")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(file="nowhere.yaml")


@settings(max_examples=15)  # one takes a tenth of a second, and two whole numbers hold few surprises
@given(st.integers(1, 10**6), st.integers(0, 2**31))
def test_a_dumped_configuration_loads_back_as_itself(places: int, seed: int) -> None:
    config = load_config(overrides=[f"plan.places={places}", f"plan.seed={seed}"])
    assert Config(**yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json")))) == config


def test_identity_leaves_out_what_does_not_change_the_outcome() -> None:
    slow, quick = (load_config(overrides=[f"train.save_steps={n}"]).train for n in (10, 20))
    assert slow.identity() == quick.identity()
    assert slow.identity() != load_config(overrides=["train.seed=5"]).train.identity()


PAPERS = ("spotagent", "geovista", "geoagent", "thinking-with-map")


@pytest.mark.parametrize("recipe", PAPERS)
def test_tiny_is_the_offline_profile_s_and_never_another_s(recipe: str, tmp_path: Path) -> None:
    """A random model of two layers is trained where it is said, and nowhere else."""
    seven, thirty = "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-30B-A3B-Instruct"
    assert load_config(recipe=recipe, profile="offline").train.base == "tiny"
    assert load_config(recipe=recipe, profile="production").train.base == (
        thirty if recipe == "thinking-with-map" else seven
    )
    assert load_config(recipe=recipe, profile="production", overrides=["train.base=tiny"]).train.base == "tiny"
    assert Config().train.base == "", "a recipe that names none has none"


@pytest.mark.parametrize("recipe", [*PAPERS, "smilegeo"])
def test_the_recipe_alone_is_the_paper_and_ours_an_overlay_that_is_named(recipe: str, tmp_path: Path) -> None:
    paper = load_config(recipe=recipe, profile="production")
    assert paper.quality == "paper" and (paper.synthesize.require == () or recipe == "smilegeo")
    ours = load_config(recipe=recipe, profile="production", overrides=["quality=ours"])
    assert ours.quality == "ours" and ours.synthesize.require is None
    assert load_config(recipe=recipe).quality == "ours", "the demo's yields depend on it"
    back = load_config(recipe=recipe, overrides=["quality=paper"])
    assert (back.quality, back.synthesize.require) == ("paper", paper.synthesize.require)
    file = tmp_path / "own.yaml"
    file.write_text("quality: ours\n")
    assert load_config(recipe=recipe, profile="production", file=file).synthesize == ours.synthesize
    with pytest.raises(ConfigError, match=r"--set: quality: given 'best'; must be paper or ours"):
        load_config(recipe=recipe, overrides=["quality=best"])


def test_spotagent_in_production_is_its_paper() -> None:
    paper = load_config(recipe="spotagent", profile="production")
    assert paper.synthesize.max_images == 20_000 and paper.ingest.shares == {"mp16-pro": 0.05}
    assert (paper.difficulty.keep, paper.difficulty.max_tokens) == ("learnable", 4096)
    assert paper.evaluate.tools == ("all",)
    rollout = paper.train.grpo
    assert (paper.evaluate.temperature, paper.evaluate.max_tokens) == (
        rollout.temperature,
        rollout.max_completion_tokens,
    )
    assert {paper.train.prompt, paper.difficulty.prompt, paper.evaluate.prompt} == {"paper"}
    ours = load_config(recipe="spotagent", profile="production", overrides=["quality=ours"])
    assert (ours.difficulty.keep, ours.train.prompt, ours.evaluate.tools) == ("reward_variance", "short", ())
    assert ours.train.base == paper.train.base
