"""GRPO with tools that answer over a socket: nobody waits for another's, pictures arrive, outages exclude."""

import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from bench import tool_rollouts
from bench.tool_rollouts import Call, Scripted, ToolServer, opened, services, settings_of, tool_server
from bench.training_lake import fill_lake
from schemas.errors import GeofixError, InputError
from schemas.settings.services import ServicesSettings, ToolsSettings
from schemas.settings.train import GrpoSettings
from tasks.agent.recording import Recording, Written, write_recording
from tasks.agent.service_tools import asked_services
from tasks.agent.tools import ToolMistake, ToolOutput
from tasks.lake import Commit, Lake
from tasks.runtime.runner import Kept
from tasks.runtime.stage import open_inputs
from tasks.services import Connections, connect
from tasks.services.call_store import CallStore
from tasks.services.calls import CallLog
from tasks.services.rate_budget import ProcessRateBudget
from tasks.services.response_store import FILE, Keep, ResponseStore, digest_key, pack
from tasks.train import samples, training
from tasks.train.chain import chain
from tasks.train.rollouts.source import Episode, Judged
from tasks.train.stage import WorkerContext, work
from tasks.train.with_tools import environment_maker

ZOOM: Call = ("image_zoom_in_tool", {"bbox_2d": [0, 0, 20, 20]})


def search(query: str) -> Call:
    return "search_web", {"query": query}


@pytest.fixture(scope="module")
def server() -> Iterator[ToolServer]:
    with tool_server() as opened:
        yield opened


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("tools") / "lake")
    fill_lake(lake)
    return lake


def test_a_rollout_goes_on_while_anothers_tool_is_slow(lake: Lake, server: ToolServer) -> None:
    """The first rollout's search is answered only once the second has made its call of the turn after."""

    def script(number: int, turn: int) -> Sequence[Call]:
        calls = {(0, 1): search("hold first"), (1, 1): search("wait 0"), (1, 2): search("release first")}
        return [calls[number, turn]] if (number, turn) in calls else []

    settings = settings_of()
    rollouts, prompts, rows = opened(Scripted, lake, settings, server, script)
    [group] = rollouts.draw(prompts[:1], rows[:1])
    assert server.overdue == [], "the second rollout waited for the first one's tool"
    assert [one.tool_calls for one in group] == [1, 2, 0, 0]
    assert all(one.outage is None for one in group)
    again = rollouts.draw(prompts[:1], rows[:1])  # connections of the draw before are used again
    assert [one.tool_calls for one in again[0]] == [0, 0, 0, 0]


def test_longer_and_longer_conversations_get_larger_engines(lake: Lake, server: ToolServer) -> None:
    def script(number: int, turn: int) -> Sequence[Call]:
        return [ZOOM, search(f"wait 0{' far' * 40 * (number + 1)}")] if turn <= 2 else []

    rollouts, prompts, rows = opened(Scripted, lake, settings_of(), server, script)
    groups = rollouts.draw(prompts[:2], rows[:2])
    assert [one.tool_calls for group in groups for one in group] == [4] * 8
    assert [len(one.completion.grids) for group in groups for one in group] == [2] * 8, "a picture for each zoom"
    assert all(len(one.completion.ids) == len(one.completion.is_policy) for group in groups for one in group)


def by_text(*_: Any) -> Callable[[Any], list[Judged]]:
    """Rewards that differ inside a group; an outage excludes, as the recipes' rewards have it."""

    def scorer(pairs: Sequence[tuple[Episode, Any]]) -> list[Judged]:
        return [
            Judged(None, one.outage)
            if one.outage
            else Judged(zlib.crc32(bytes(str(one.completion.ids), "ascii")) / 2**32)
            for one, _ in pairs
        ]

    return scorer


def trained(
    folder: Path, server: ToolServer, script: Callable[[int, int], Sequence[Call]], monkeypatch: pytest.MonkeyPatch,
    recipe: str = "geovista", connections: Connections | None = None,
) -> Any:  # fmt: skip
    """The GRPO stage's own work, with tools; only which calls a reply makes is given."""

    def make(*arguments: Any) -> Scripted:
        engines, encoder, environment, *rest = arguments
        rollouts = Scripted(engines, encoder, tool_rollouts.numbered(environment), *rest)
        rollouts.script = script
        return rollouts

    monkeypatch.setattr(training, "ToolRollouts", make)
    monkeypatch.setattr(training, "Engines", tool_rollouts.Short)
    monkeypatch.setattr(training, "recipe_scorer", by_text)
    settings = settings_of(recipe, group_size=2)
    lake = Lake(folder)
    fill_lake(lake)
    found, _ = samples.compute(open_inputs(samples.STAGE, lake), settings)
    lake.upsert("samples", found.drop("id").to_dicts(), Commit("train.samples", 1))
    [link] = chain(lake.read("samples"), settings)
    item = {"id": link.model_id, "training_stage": "grpo", "snapshot_id": "s", "samples": link.samples}
    return lake, work(item, WorkerContext(lake, settings, connections or services(server)))


@pytest.mark.parametrize("recipe", ["geovista", "thinking-with-map"])
def test_training_sees_tool_pictures_and_leaves_outages_out(
    recipe: str, tmp_path: Path, server: ToolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    look: Call = ZOOM if recipe == "geovista" else ("satellite_map_query", {"lat": 61.0, "lon": 9.0})
    ask: Call = search("fail") if recipe == "geovista" else ("poi_input_tips", {"text": "fail"})

    def script(number: int, turn: int) -> Sequence[Call]:
        if turn == 1:
            return [look]
        return [ask] if turn == 2 and number == 3 else []

    before = len(server.asked)
    _, outcome = trained(tmp_path / "lake", server, script, monkeypatch, recipe)
    assert isinstance(outcome, Kept)
    [step] = [json.loads(row["figures_json"]) for row in outcome.rows["training_steps"] if row["kind"] == "step"]
    assert step["excluded"] == 1, "the one whose service failed"
    assert step["grad_norm"] > 0 and step["tool_calls"] == pytest.approx((4 + 1) / 4)
    assert len(server.asked) > before


def test_training_stops_where_services_fail_every_rollout(
    tmp_path: Path, server: ToolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GeofixError, match=r"a tool or service failed all 4 rollouts of this step \(\w+\)") as error:
        trained(tmp_path / "lake", server, lambda number, turn: [search("fail")], monkeypatch)
    assert "\n" not in str(error.value)
    assert not [path for path in (tmp_path / "lake" / "models").glob("*") if not path.name.startswith(".")]


def test_a_missing_key_of_a_tools_service_is_said_at_once(lake: Lake) -> None:
    needs = ServicesSettings.model_validate({"search": {"base_url": "https://search.example", "key_env": "SEARCH_KEY"}})
    with pytest.raises(GeofixError, match="ask search: put its key into SEARCH_KEY"):
        environment_maker(settings_of(), lake.images, connect(needs, {}, ()))
    with pytest.raises(GeofixError, match="'geoagent' has no tools; set it to 0"):
        environment_maker(settings_of("geoagent", grpo=GrpoSettings(max_turns=2)), lake.images, None)


@pytest.mark.whole
def test_recorded_tools_make_the_same_model_bit_by_bit_and_ask_nobody(
    tmp_path: Path, server: ToolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that records, then two that have its recording: the same weights, however long services took."""

    def script(number: int, turn: int) -> Sequence[Call]:
        asks = turn <= 1 + number % 2
        return [ZOOM, search(f"wait 0.{(7 * number + turn) % 5} place {number} {turn}")] if asks else []

    live = services(server)
    log = CallLog(CallStore(tmp_path / FILE))
    recording = tmp_path / "tools.sqlite"
    weights, figures, asked = [], [], []
    for name in ("record", "frozen", "again"):
        tools = ToolsSettings(mode="frozen", recording=str(recording))
        if name == "record":
            tools = ToolsSettings(mode="record")
        connections = replace(live.sharing(ProcessRateBudget(), log), tools=tools)
        _, outcome = trained(tmp_path / name, server, script, monkeypatch, connections=connections)
        assert isinstance(outcome, Kept)
        [step] = [json.loads(row["figures_json"]) for row in outcome.rows["training_steps"] if row["kind"] == "step"]
        [model] = outcome.rows["models"]
        weights.append((tmp_path / name / model["checkpoint"] / "model.safetensors").read_bytes())
        figures.append({key: value for key, value in step.items() if not key.endswith("_s")})
        asked.append(len(server.asked))
        if name == "record":
            written = write_recording(tmp_path, asked_services(connections), recording)
            assert written.answers == 6 and written.by_tool == {"search_web": 6}
    assert weights[0] == weights[1] == weights[2]
    assert figures[0] == figures[1] == figures[2] and figures[0]["tool_misses"] == 0
    assert asked[0] == asked[1] == asked[2], "no request once it is recorded"


@pytest.mark.whole
def test_the_nearest_recorded_answers_make_the_same_model_bit_by_bit_and_are_counted(
    tmp_path: Path, server: ToolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Questions in other words than were recorded: some are near, one is as it was, one like none."""

    def recorded(number: int, turn: int) -> Sequence[Call]:
        return [search(f"wait 0 street {number} of the old town")] if turn == 1 else []

    def asked(number: int, turn: int) -> Sequence[Call]:
        words = {0: "wait 0 street 0 of the old town", 1: "Street 1, old town", 2: "the OLD town street 2", 3: "zebra"}
        return [search(words[number])] if turn == 1 else []

    live, log, recording = services(server), CallLog(CallStore(tmp_path / FILE)), tmp_path / "tools.sqlite"
    whom = live.sharing(ProcessRateBudget(), log)
    trained(
        tmp_path / "record",
        server,
        recorded,
        monkeypatch,
        connections=replace(whom, tools=ToolsSettings(mode="record")),
    )
    assert write_recording(tmp_path, asked_services(live), recording).answers == 4
    weights, figures, before = [], [], len(server.asked)
    for name in ("nearest", "again"):
        tools = ToolsSettings(mode="nearest", recording=str(recording), nearest_words=0.3)
        _, outcome = trained(tmp_path / name, server, asked, monkeypatch, connections=replace(whom, tools=tools))
        assert isinstance(outcome, Kept)
        [step] = [json.loads(row["figures_json"]) for row in outcome.rows["training_steps"] if row["kind"] == "step"]
        [model] = outcome.rows["models"]
        weights.append((tmp_path / name / model["checkpoint"] / "model.safetensors").read_bytes())
        figures.append({key: value for key, value in step.items() if not key.endswith("_s")})
    assert weights[0] == weights[1] and figures[0] == figures[1]
    assert (figures[0]["tool_near"], figures[0]["tool_misses"]) == (0.5, 0.25), "the fourth call was exact"
    assert len(server.asked) == before, "no request"


async def test_the_nearest_answer_is_that_of_the_most_like_question(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path / FILE)
    questions: list[tuple[str, dict[str, Any], int]] = [
        ("image_search", {"bbox_2d": [0, 0, 100, 100], "picture": "a"}, 5),
        ("image_search", {"bbox_2d": [0, 0, 100, 80], "picture": "a"}, 5),
        ("text_search", {"queries": ["old mill", "bakery"]}, 5),
        ("text_search", {"queries": ["old mill"]}, 5),
    ]
    for number, asked in enumerate(questions):
        value = pack({"value": {"n": number}, "is_picture": False, "services": "s", "asked": list(asked)})
        store.apply([Keep("tool", digest_key("s", *asked), value, 1.0)])
    write_recording(tmp_path, "other", tmp_path / "tools.sqlite", "s")
    near = Recording(tmp_path / "tools.sqlite", (0.7, 0.0))

    async def nobody() -> ToolOutput:
        raise AssertionError("no service is asked")

    async def answered(*question: Any) -> tuple[Any, float]:
        output = await near.ask_once(question, nobody)
        return output.value["n"], round(output.likeness, 3)

    assert await answered(*questions[1]) == (1, 1.0)
    assert await answered("image_search", {"bbox_2d": [0, 0, 100, 85], "picture": "a"}, 5) == (1, 0.941)
    assert await answered("image_search", {"bbox_2d": [0, 0, 100, 95], "picture": "a"}, 9) == (0, 0.95)
    assert await answered("text_search", {"queries": ["bakery by the old mill"]}, 5) == (2, 0.6)
    for question in (
        ("image_search", {"bbox_2d": [0, 0, 50, 50], "picture": "a"}, 5),
        ("image_search", {"bbox_2d": [0, 0, 100, 100], "picture": "b"}, 5),
        ("text_search", {"queries": ["zebra"]}, 5),
        ("search_web", {"query": "old mill"}, 5),
    ):
        with pytest.raises(ToolMistake, match="nothing is recorded"):
            await near.ask_once(question, nobody)
    assert (near.found, near.near, near.misses) == (1, 3, 4)
    with pytest.raises(ToolMistake):
        await Recording(tmp_path / "tools.sqlite").ask_once(("text_search", {"queries": ["mill"]}, 5), nobody)


def test_tools_are_recorded_also_where_no_model_is_asked(
    tmp_path: Path, server: ToolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reward by distance asks no model, so the run keeps no log of calls."""
    connections = replace(services(server), tools=ToolsSettings(mode="record"))

    def script(number: int, turn: int) -> Sequence[Call]:
        return [ZOOM, search(f"place {number}")] if turn == 1 else []

    lake, outcome = trained(tmp_path / "lake", server, script, monkeypatch, connections=connections)
    assert isinstance(outcome, Kept)
    written = write_recording(lake.state, asked_services(connections), tmp_path / "tools.sqlite")
    assert written.by_tool == {"search_web": 4}
    # Each is kept as its picture's: it goes where the picture goes, and leaves with it.
    pictures = set(lake.read("images")["image_id"])
    store = ResponseStore(lake.state / FILE)
    assert store.forget_items(lambda item_id: item_id not in pictures) == 0
    assert store.forget_items(pictures.__contains__) == 4


def test_what_was_never_asked_is_a_miss_that_the_run_counts(
    tmp_path: Path, server: ToolServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = tmp_path / "tools.sqlite"
    assert write_recording(tmp_path, "nobody", recording).answers == 0
    before = len(server.asked)
    frozen = replace(services(server), tools=ToolsSettings(mode="frozen", recording=str(recording)))

    def script(number: int, turn: int) -> Sequence[Call]:
        return [ZOOM, search("anything")] if turn == 1 else []

    _, outcome = trained(tmp_path / "lake", server, script, monkeypatch, connections=frozen)
    [step] = [json.loads(row["figures_json"]) for row in outcome.rows["training_steps"] if row["kind"] == "step"]
    assert step["tool_misses"] == 0.5 and step["excluded"] == 0, "half of the calls; none of the rollouts is left out"
    assert len(server.asked) == before


def test_a_recording_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file; `geofix export --as frozen-tools` writes one"):
        Recording(tmp_path / "gone.sqlite")
    (tmp_path / "other.sqlite").write_bytes(b"something else, and long enough to be read as a file of tables" * 9)
    with pytest.raises(InputError, match="is no recording of tools"):
        Recording(tmp_path / "other.sqlite")
    with pytest.raises(ValidationError, match="name the file of recorded answers with mode frozen or nearest"):
        ToolsSettings(mode="frozen")


def test_the_same_answers_make_the_same_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        store = ResponseStore(tmp_path / name / FILE)
        keys = [("maps_geocode", {"address": f"Rua {n}"}, 5) for n in range(40)]
        for asked in keys if name == "one" else keys[::-1]:
            value = pack({"value": {"n": 1}, "is_picture": False, "services": "s", "asked": list(asked)})
            store.apply([Keep("tool", digest_key("s", *asked), value, 1.0)])
        store.apply([Keep("tool", "older", pack({"value": {}, "is_picture": False}), 1.0)])
        written = write_recording(tmp_path / name, "s", tmp_path / f"{name}.sqlite")
        assert written == Written(40, {"maps_geocode": 40}, 1, 0)
    assert (tmp_path / "one.sqlite").read_bytes() == (tmp_path / "two.sqlite").read_bytes()
