"""The forecast of a training step's memory: what the head's gradient takes."""

import pytest

from bench.cards import settings_of
from bench.qwen_gpu import SHAPES
from tasks.train.fast.loss import CHUNK
from tasks.train.memory import GIB, HEAD_CHUNK, Load, Shape, activations, fit


@pytest.fixture(scope="module")
def shape() -> Shape:
    return Shape.of(SHAPES["qwen2.5-vl-7b"].config().to_dict())


def test_the_heads_gradient_is_summed_in_float32_from_the_second_chunk_on(shape: Shape) -> None:
    assert HEAD_CHUNK == CHUNK
    settings = settings_of("whole")
    one, two = (activations(shape, settings, Load(8192, 0, trained), 2)[0] for trained in (CHUNK, CHUNK + 1))
    # 152,064 x 3,584 numbers: a sum of four bytes each, beside the two of one chunk's share
    assert two - one == shape.vocabulary * shape.hidden * 4 and (two - one) / GIB == pytest.approx(2.03, abs=0.01)
    frozen = settings_of("lora")
    assert len({activations(shape, frozen, Load(8192, 0, trained), 2)[0] for trained in (CHUNK, CHUNK + 1)}) == 1


def test_cold_start_of_all_weights_on_80_gb_takes_packs_of_one_chunk(shape: Shape) -> None:
    """Packs of 26,408 tokens, 6,000 of them trained, ran out of an H200's memory that was capped at 80 GB."""
    chosen, needed = fit(shape, settings_of("whole"), "cold_start", 1500, 2, 8, 0.95 * 80e9)
    assert chosen.pack_limit < 4 * 6602 and needed.total < 0.95 * 80e9
