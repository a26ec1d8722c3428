"""Resources of a stage from settings: its name has dots, in a file as after --set."""

from pathlib import Path

import pytest

from flows.order import check_step_names, steps_of
from schemas.load import ConfigError, load_config
from schemas.settings.services import GeocoderEndpoint, SearchEndpoint
from schemas.settings.spread import StageResources
from tasks.runtime.stage import Resources, Stage, chosen_resources, most_workers, placed_resources
from tasks.services import Connection


def test_a_stage_is_named_with_its_dots_in_a_file_and_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("spread: {stages: {curate.judge: {cpus: 2, concurrency: 4}, collect: {workers: 3}}}")
    overrides = ["spread.stages.curate.judge.concurrency=32", "spread.stages.collect.satellite.memory_mb=500"]
    found = load_config(file=file, overrides=overrides).spread.stages
    assert found == {
        "curate.judge": StageResources(cpus=2, concurrency=32),
        "collect": StageResources(workers=3),
        "collect.satellite": StageResources(memory_mb=500),
    }
    declared = Resources(cpus=1, workers=9, chunk=2)
    assert chosen_resources(declared, found["curate.judge"]) == Resources(cpus=2, workers=9, concurrency=32, chunk=2)
    assert chosen_resources(declared, None) is declared


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "spread.stages.curate.judge.concurency=3",
            "no such field; did you mean 'spread.stages.curate.judge.concurrency'?",
        ),
        ("spread.stages.curate.judge.gpus=-1", "spread.stages.curate.judge.gpus: given -1"),
        ("spread.stages.workers=3", "spread.stages.workers"),
    ],
)
def test_a_wrong_field_is_named(override: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=[override])
    assert said in str(caught.value) and "--set" in str(caught.value)


def test_it_is_no_part_of_the_identity_of_what_comes_out() -> None:
    plain, changed = load_config().spread, load_config(overrides=["spread.stages.plan.cpus=2"]).spread
    assert plain.identity() == changed.identity()


def test_a_stage_that_does_not_exist_or_has_no_workers_is_refused_with_those_that_do() -> None:
    check_step_names(["collect", "collect.satellite", "ingest"])
    with pytest.raises(ConfigError, match=r"no step 'colect' has workers; did you mean 'collect'\?.*train\.sft"):
        check_step_names(["colect"])
    with pytest.raises(ConfigError, match="no step 'plan' has workers"):
        check_step_names(["plan"])


def test_a_stage_has_a_gpu_where_a_node_of_the_cluster_has_one_whatever_this_machine_has() -> None:
    training = next(step for step in steps_of("train") if step.name == "train.sft")
    assert isinstance(training, Stage)
    wants = training.resources
    assert wants.gpus == 0, "which GPUs this machine has does not matter"
    assert placed_resources(wants, [{"CPU": 4}, {"CPU": 4, "GPU": 8}]).gpus == 1
    assert placed_resources(wants, [{"CPU": 4}]).gpus == 0 == placed_resources(Resources(), [{"GPU": 8}]).gpus
    on_cpus = chosen_resources(wants, StageResources(gpus=0))
    assert placed_resources(on_cpus, [{"GPU": 8}]).gpus == 0, "the settings go before"


def test_no_more_workers_than_the_budgets_of_the_services_can_use() -> None:
    slow = Connection("geocoder", GeocoderEndpoint(requests_per_minute=600))
    slower = Connection("search", SearchEndpoint(requests_per_minute=60))
    free = Connection("search", SearchEndpoint())
    assert most_workers([slow], 8) == 13  # 100 requests of 10 s each are under way
    assert most_workers([slow, slower, None], 8) == 13, "an item need not ask the slower one"
    assert most_workers([slower], 64) == 1
    assert most_workers([slow, free], 8) is None and most_workers([], 8) is None
