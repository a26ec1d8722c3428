"""A model's id follows from its stage, settings, samples and parent, and from nothing else."""

import polars as pl

from schemas.settings.train import ColdStartSettings, GrpoSettings, TrainSettings
from tasks.train.chain import chain, samples_of


def samples(*stages: str) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {
                "sample_id": f"{stage}-{number}",
                "sha256": f"{1 - number:064x}",
                "training_stage": stage,
                "phase": (2 - number if stage == "grpo" else None),
                "messages_json": f'[{{"role": "user", "content": "{stage} {number}"}}]',
                "lat": 1.0,
                "lon": 2.0,
            }
            for stage in stages
            for number in range(2)
        ],
        schema_overrides={"phase": pl.Int64},
    )


ALL = samples("sft", "cold_start", "grpo")
TINY = TrainSettings(base="tiny")


def ids(frame: pl.DataFrame, settings: TrainSettings) -> list[str]:
    return [link.model_id for link in chain(frame, settings)]


def test_each_model_is_the_parent_of_the_next() -> None:
    sft, cold_start, grpo = chain(ALL, TrainSettings())
    assert (sft.parent_id, cold_start.parent_id, grpo.parent_id) == (None, sft.model_id, cold_start.model_id)


def test_a_stage_without_samples_is_passed_over() -> None:
    sft, cold_start, grpo = chain(samples("sft", "grpo"), TrainSettings())
    assert cold_start.samples == 0
    assert grpo.parent_id == sft.model_id


def test_a_change_reaches_its_stage_and_those_after_it() -> None:
    before = ids(ALL, TrainSettings())
    later = ids(ALL, TrainSettings(grpo=GrpoSettings(learning_rate=2e-6)))
    assert [a == b for a, b in zip(before, later, strict=True)] == [True, True, False]
    middle = ids(ALL, TrainSettings(cold_start=ColdStartSettings(epochs=2)))
    assert [a == b for a, b in zip(before, middle, strict=True)] == [True, False, False]
    assert not set(before) & set(ids(ALL, TrainSettings(seed=1)))


def test_neither_row_order_nor_operational_settings_matter() -> None:
    assert ids(ALL.reverse(), TrainSettings()) == ids(ALL, TrainSettings(save_steps=7))


def test_for_a_real_base_other_stages_samples_do_not_matter() -> None:
    settings = TrainSettings(base="Qwen/Qwen2.5-VL-7B-Instruct")
    assert ids(ALL, settings)[0] == ids(samples("sft"), settings)[0]
    assert ids(ALL, TINY)[0] != ids(samples("sft"), TINY)[0], "the tiny tokenizer reads all text"


def test_phase_one_is_trained_first_and_replay_mixes_sft_in() -> None:
    assert samples_of(ALL, "grpo", TrainSettings())["phase"].to_list() == [1, 2]
    mixed = TrainSettings(cold_start=ColdStartSettings(replay=0.5))
    assert sorted(samples_of(ALL, "cold_start", mixed)["training_stage"]) == ["cold_start", "cold_start", "sft"]


def test_training_order_follows_from_the_pictures_not_from_the_lakes_ids() -> None:
    assert samples_of(ALL, "sft", TrainSettings())["sample_id"].to_list() == ["sft-1", "sft-0"]
