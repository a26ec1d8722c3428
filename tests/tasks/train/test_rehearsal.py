"""Conversations of another origin among those of SFT and cold start."""

import random
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.pretrain.rehearsal import write_rehearsal
from infra.pretrain.tokens import Tokens, record_texts
from schemas.errors import InputError
from schemas.settings.train import RehearsalSettings, TrainSettings, TunerSettings
from tasks.agent.render import chat_template
from tasks.imaging.processor import load_processor
from tasks.train.chain import chain
from tasks.train.encoding import Encoder
from tasks.train.packaged import packaged_folder
from tasks.train.rehearsal import open_rehearsal
from tasks.train.supervised import Supervised

ALL = pl.DataFrame(
    [
        {"sample_id": phase, "sha256": phase, "training_stage": phase, "phase": None, "messages_json": "[]",
         "lat": 1.0, "lon": 2.0}
        for phase in ("sft", "cold_start", "grpo")
    ],
    schema_overrides={"phase": pl.Int64},
)  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rehearsal") / "rehearsal.parquet"
    assert write_rehearsal(path, 6, seed=3) == 6
    return path


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    processor = load_processor(str(packaged_folder()), 40_000, 100_352)
    processor.chat_template = chat_template()
    return Encoder(processor, None)  # type: ignore[arg-type]


def test_plates_are_read_letter_by_letter_and_results_are_quoted(file: Path, encoder: Encoder) -> None:
    count, encode = open_rehearsal(RehearsalSettings(file=str(file)), encoder)
    rows, tokens = pl.read_parquet(file).to_dicts(), Tokens(packaged_folder() / "tokenizer.json")
    assert count == len(rows) == 6
    for number, row in enumerate(rows):
        sample, said = encode(number), row["messages"][1]["content"][0]["text"]
        trained = [token for token, label in zip(sample.ids, sample.labels, strict=True) if label != -100]
        assert encoder.decode(trained).strip() == said
        if row["images"]:
            name = said.partition('"address": "')[2].partition('"}')[0]
            letters = [token for letter in name for token in tokens.encode(letter)]
            assert any(trained[at : at + len(letters)] == letters for at in range(len(trained)))
            assert sample.pixels is not None and len(sample.grids) == 1
        else:
            assert sample.pixels is None and not sample.grids


def test_a_quarter_of_a_step_is_rehearsed_and_every_sample_is_still_seen_once(build_tiny: Any) -> None:
    from tasks.train.fast.families import fast_model
    from tasks.train.token_samples import Sample

    settings = TrainSettings(rehearsal=RehearsalSettings(file="unread", share=0.25), loader_threads=0)
    tuner = TunerSettings(epochs=2, batch_size=8)
    program = Supervised(fast_model(build_tiny()), lambda n: Sample([], []), 12, settings, tuner, rehearsed=100)
    assert program.steps == 4
    for epoch in range(2):
        keys = [key for step in (2 * epoch, 2 * epoch + 1) for key in program.batch(step)]
        assert sorted(key for key in keys if key < 12) == list(range(12))
        assert len([key for key in keys if 12 <= key < 112]) == 4
    assert program.batch(1) == program.batch(1) != program.batch(3)


def test_what_is_rehearsed_decides_sft_and_cold_start_by_its_bytes(file: Path, tmp_path: Path) -> None:
    def ids(path: Path, share: float = 0.25) -> list[str]:
        settings = TrainSettings(rehearsal=RehearsalSettings(file=str(path), share=share))
        return [link.model_id for link in chain(ALL, settings)]

    moved = tmp_path / "moved.parquet"
    moved.write_bytes(file.read_bytes())
    assert ids(moved) == ids(file)
    other = tmp_path / "other.parquet"
    write_rehearsal(other, 2, seed=4)
    for changed in (ids(other), ids(file, 0.5), [link.model_id for link in chain(ALL, TrainSettings())]):
        assert not set(changed) & set(ids(file))


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (None, "is not there"),
        (b"no parquet", "is no Parquet file with messages and images"),
        ([], "holds no conversation"),
        ([{"messages": [{"role": "user", "content": [{"type": "image"}]}], "images": []}], "names 1 pictures"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_rehearsed_is_one_line(written: Any, told: str, tmp_path: Path, encoder: Encoder) -> None:
    path = tmp_path / "lessons.parquet"
    if isinstance(written, bytes):
        path.write_bytes(written)
    elif written is not None:
        part = pa.struct([("type", pa.string()), ("text", pa.string())])
        turn = pa.struct([("role", pa.string()), ("content", pa.list_(part))])
        schema = pa.schema([("messages", pa.list_(turn)), ("images", pa.list_(pa.binary()))])
        pq.write_table(pa.Table.from_pylist(written, schema), path)
    with pytest.raises(InputError, match=r"^train\.rehearsal\.file: ") as error:
        open_rehearsal(RehearsalSettings(file=str(path)), encoder)
    assert told in str(error.value) and "\n" not in str(error.value)


def test_an_invented_record_is_quoted_exactly() -> None:
    told, said = record_texts(random.Random(5))
    for line in said.splitlines()[1:3]:
        assert line.partition(": ")[2] in told
