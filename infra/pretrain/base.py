"""The folder a pretraining run starts from: shape, tokenizer and untrained weights of a small Qwen2.5-VL."""

from collections.abc import Iterable
from pathlib import Path

from schemas.settings.train import TinySettings
from tasks.agent.prompt import DIRECT
from tasks.recipes import spotagent
from tasks.train.packaged import spell_addresses
from tasks.train.tiny import build_model, build_processor

MIN_PIXELS, MAX_PIXELS = 25_088, 100_352  # 32 to 128 tokens of 28 x 28 pixels
SHAPE = TinySettings(vocabulary=1024, hidden=256, layers=4, intermediate=768, vision_hidden=256, vision_layers=8)
# What the agent's conversations are made of besides words: the tokenizer should know it in few tokens.
_FORMS = (
    "<think>\n</think>\n<answer>\nCountry: \nCity: \nLatitude: \nLongitude: \n</answer>",
    '<tool_call>\n{"name": "image_zoom_in_tool", "arguments": {"bbox_2d": [0, 0, 0, 0]}}\n</tool_call>',
    '<tool_call>\n{"name": "search_web", "arguments": {"query": ""}}\n</tool_call>',
    '<tool_call>\n{"name": "maps_geocode", "arguments": {"address": ""}}\n</tool_call>',
    '{"results": [{"title": "", "url": "https://", "content": ""}]} {"lat": 0.0, "lon": 0.0, "display_name": ""}',
)


def new_base(folder: Path, texts: Iterable[str], shape: TinySettings = SHAPE, seed: int = 0) -> Path:
    """A folder with configuration, processor and untrained weights of a small Qwen2.5-VL.

    The tokenizer knows the agent's prompts and `texts`; place names it spells, letter by letter as the base reads them.
    """
    words = (spotagent.SYSTEM, spotagent.OBSERVER, DIRECT.question, DIRECT.system)
    processor = build_processor([*texts, *_FORMS, *words], shape, MIN_PIXELS, MAX_PIXELS)
    build_model(processor, shape, seed).save_pretrained(folder)
    processor.save_pretrained(folder)
    spell_addresses(folder / "tokenizer.json")
    return folder
