"""A trial of the whole pretraining on two CPU cores."""

import json
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_few_steps_end_in_a_model_folder(tmp_path: Path) -> None:
    from transformers import AutoConfig

    from infra.pretrain.__main__ import main
    from infra.pretrain.tokens import Tokens

    arguments = ["--steps", "8", "--places", "12", "--held-out", "3", "--batch", "2", "--processes", "0"]
    assert main([str(tmp_path / "base"), *arguments]) == 0
    assert AutoConfig.from_pretrained(tmp_path / "base").model_type == "qwen2_5_vl"
    figures = json.loads((tmp_path / "base" / "figures.json").read_text())
    assert figures["signs"]["lines"] and figures["signs_shuffled"]["exact"] < 0.5 and figures["parameters"] > 1e6
    assert figures["log"][0]["loss"] > 1
    tokens = Tokens(tmp_path / "base" / "tokenizer.json")
    asked, letters = tokens.encode('{"address": "Rue Été"}'), tokens.spelled("Rue Été")
    assert any(asked[k : k + len(letters)] == letters for k in range(len(asked))), "a name is written as it is read"
    assert not (tmp_path / "base.partial").exists()
