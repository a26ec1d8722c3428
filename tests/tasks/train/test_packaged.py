"""The packaged base: small, whole, a normal Qwen2.5-VL folder, and it reads."""

import random
from pathlib import Path

import pytest
import torch
from PIL import Image

from infra.offline.world import World
from infra.pretrain.boards import boards_of, crop_board
from infra.pretrain.pictures import READ
from schemas.settings.train import TrainSettings
from tasks.imaging.processor import load_processor
from tasks.train import packaged
from tasks.train.opening import base_folder, check_base


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        check_base(TrainSettings(base="sees-2"))
        found = base_folder("sees-2")
        assert found == base_folder("sees-2") and found.is_relative_to(cache)
        assert not list(found.parent.glob(".*"))  # nothing half unpacked is left
    return found


def test_the_package_stays_small() -> None:
    assert sum(file.stat().st_size for file in packaged.FILES.values()) < 20e6


def test_the_agent_sees_with_the_eyes_of_its_base(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    base, agent = load_file(folder / packaged.WEIGHTS), load_file(base_folder("finds-2") / packaged.WEIGHTS)
    assert base.keys() == agent.keys()
    same = {name for name in base if torch.equal(base[name], agent[name])}
    assert {name for name in base if packaged.SHARED in name} <= same
    assert all(name not in same for name in base if name.endswith("proj.weight") and packaged.SHARED not in name)
    check_base(TrainSettings(base="finds-2"))


def test_packing_keeps_weights_within_a_step(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    packaged.pack_base(folder, tmp_path / "again.safetensors")
    again = load_file(packaged.unpack_base(tmp_path / "again.safetensors", tmp_path / "again") / packaged.WEIGHTS)
    for name, weight in load_file(folder / packaged.WEIGHTS).items():
        largest = weight.abs().flatten(1).amax(1) if weight.ndim > 1 else weight.abs()
        step = largest / 127 if weight.ndim > 1 else largest / 128
        off = (again[name] - weight).abs()
        assert bool(((off.flatten(1).amax(1) if weight.ndim > 1 else off) <= step * 1.01 + 1e-9).all()), name


def test_it_reads_signs_it_has_not_seen(folder: Path) -> None:
    from transformers import Qwen2_5_VLForConditionalGeneration

    processor = load_processor(str(folder))
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    rng = random.Random(5)
    world = World(11, 400)  # another world than the one it was trained on
    boards = [next(b for b in boards_of(world.place(i)) if not b.flat and b.lines[0].isascii()) for i in range(4)]
    right = 0
    for board in boards:
        crop = crop_board(board, 0, 22.0, lambda w, h: Image.new("RGB", (w, h), (120, 130, 140)), rng)
        question = [{"type": "image", "image": Image.fromarray(crop.pixels)}, {"type": "text", "text": READ[0]}]
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": question}],
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            add_generation_prompt=True,
        )
        assert tuple(inputs["image_grid_thw"][0].tolist()) == (1, 2 * crop.grid[0], 2 * crop.grid[1])
        with torch.inference_mode():
            written = model.generate(**inputs, max_new_tokens=36, do_sample=False)[0, inputs["input_ids"].shape[1] :]
        right += processor.tokenizer.decode(written, skip_special_tokens=True) == " ".join(crop.text.split())
    assert right >= 2  # noise reads none


def test_it_spells_the_name_it_looks_up_and_nothing_else(folder: Path) -> None:
    tokenizer = load_processor(str(folder)).tokenizer
    call = '{"name": "maps_geocode", "arguments": {"address": "Rue de la Poste"}}'
    pieces = [tokenizer.decode([one]) for one in tokenizer(call)["input_ids"]]
    assert "".join(pieces) == call
    start = len(pieces) - 1 - pieces[::-1].index("R")
    assert pieces[start : start + len("Rue de la Poste")] == list("Rue de la Poste")
    assert "geocode" in pieces  # words elsewhere stay whole
