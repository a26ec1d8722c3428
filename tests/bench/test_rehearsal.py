"""The rehearsal of production: its recorder, its vendors' doors, and the whole of it."""

import json
import os
import pickle
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from bench.rehearsal.__main__ import (
    CUTS,
    PAGE,
    RECIPES,
    RECORDER,
    SMALLER,
    field_of,
    named_by_recipe,
    never_read,
    production_only,
    recorded,
    script_of,
)
from bench.rehearsal.vendors import KEYS, served, settings_of_addresses, vendors
from schemas.load import SHIPPED, load_config

ROOT = Path(__file__).resolve().parent.parent.parent
READER = """
import pickle, sys
from schemas.config import Config
from schemas.load import load_config
config = load_config("geoagent", "production")
config.identity(), config.plan.places
config.models.roles["observer"].omit, config.services.chat.prices["gpt-4.1"].prompt
train = pickle.loads(pickle.dumps(config.train))
train.grpo.kl
again = Config.model_validate_json(config.model_dump_json())
assert again == config and hash(again.plan.split) == hash(config.plan.split)
type(again.train.lora).model_validate(again.train.lora.model_dump()).rank
"""


def test_what_is_read_is_recorded_with_its_path(tmp_path: Path) -> None:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(RECORDER), str(ROOT)]),
        "GEOFIX_READS": str(tmp_path),
    }
    subprocess.run([sys.executable, "-c", READER], env=environment, check=True)
    reads = recorded(tmp_path)
    wanted = {"plan|places", "models|roles|observer|omit", "services|chat|prices|gpt-4.1|prompt", "train|grpo|kl"}
    assert wanted <= reads and "train|lora|rank" in reads
    # `identity` and validation read every field: they do not count
    unread = {"plan|seed", "train|lora|alpha", "services|chat|prices|o3|prompt", "models|roles|planner|omit"}
    assert never_read(wanted | unread, reads) == sorted(unread)


def test_without_the_recorder_nothing_is_written() -> None:
    assert type(load_config()).__getattribute__ is object.__getattribute__
    assert pickle.loads(pickle.dumps(load_config().plan)) == load_config().plan


def test_the_settings_production_has_to_itself() -> None:
    settings = production_only(RECIPES)
    assert {"services|chat|tokens_per_minute", "models|roles|planner|model", "train|precision"} <= settings
    assert "services|chat|prices|gpt-4.1|prompt" in settings and "ingest|shares" in named_by_recipe("spotagent")
    assert field_of("ingest|shares|mp16-pro") == "ingest|shares"
    addresses = settings_of_addresses(dict.fromkeys(vendors({}), "http://127.0.0.1:1"))
    for recipe in RECIPES:
        load_config(recipe, "production", overrides=[*addresses, *CUTS])  # every one is a setting


def ask(url: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_a_vendor_opens_to_its_own_key_alone() -> None:
    doors = vendors(yaml.safe_load((SHIPPED / "profiles" / "production.yaml").read_text())["models"]["roles"])
    own = {"Authorization": f"Bearer {KEYS['OPENAI_API_KEY']}"}
    chat: dict[str, Any] = {"model": "gpt-5", "messages": [{"role": "user", "content": "Hello"}]}
    with served(doors, 100) as at:
        url = f"{at['chat']}/openai/v1"
        assert ask(f"{url}/models")[0] == 401
        assert ask(f"{url}/models", Authorization=f"Bearer {KEYS['ANTHROPIC_API_KEY']}")[0] == 403
        assert b'"gpt-4.1"' in ask(f"{url}/models", **own)[1]
        assert ask(f"{url}/chat/completions", chat | {"max_tokens": 9}, **own)[0] == 400
        assert ask(f"{url}/chat/completions", chat | {"model": "planner"}, **own)[0] == 404
        assert ask(f"{at['search']}/tavily/search", {"query": "x"}, **own)[0] == 403
        assert ask(f"{at['search']}/tavily/search", {"query": "Paris"})[0] == 401
        tavily = {"Authorization": f"Bearer {KEYS['TAVILY_API_KEY']}"}
        assert ask(f"{at['search']}/tavily/search", {"query": "Paris"}, **tavily)[0] == 200
        assert ask(f"{at['policy']}/openai/v1/models")[0] == 200  # your own server wants none
        assert ask(f"{at['mapillary']}/mapillary/images?bbox=2,48,2.01,48.01")[0] == 401
        graph = f"{at['mapillary']}/mapillary/images?bbox=2,48,2.01,48.01&access_token="
        assert ask(graph + KEYS["MAPILLARY_TOKEN"].replace("|", "%7C"))[0] == 200
    assert doors["chat"].refused["carries ANTHROPIC_API_KEY"] == 1 and doors["search"].refused["no TAVILY_API_KEY"] == 1


def test_the_page_is_the_script() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(size in page for size in SMALLER)
    for title in ("Once", *RECIPES.values()):
        script = script_of(page, title)
        assert "geofix " in script and not any(size in script for size in SMALLER)
    assert script_of(page, "SpotAgent").count("geofix run") == 3
