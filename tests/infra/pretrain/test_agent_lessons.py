"""Lessons of the small agent: quoting, spelling, frozen sight, the teacher's trajectories in the one environment."""

import asyncio
import io
import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from infra.pretrain import teacher
from infra.pretrain import tokens as texts
from infra.pretrain.agent import Agent, Going, open_agent, trained
from infra.pretrain.cold_start import Lesson, Pupil, answer_lesson, lesson_of, packed_lessons, packed_texts, study
from infra.pretrain.tokens import IGNORED, Tokens
from tasks.agent.toolbox import Toolbox
from tasks.agent.tools import ToolContext
from tasks.services.geocoder import GeocodeCandidate
from tasks.train.encoding import Encoder
from tasks.train.fast.families import fast_model
from tasks.train.fast.grouped import Completion
from tasks.train.fast.packing import Packed, pack
from tasks.train.packaged import packaged_folder

FOUND = GeocodeCandidate(-37.3809, 5.0019, "Rue Été", "Rue Été, Aville, Bland", "Bland", "BL", "", "Aville", 0.35)


class Found:
    """A geocoder that knows one street."""

    async def search(self, query: str, limit: int = 5) -> list[GeocodeCandidate]:
        return [FOUND] if query == "Rue Été" else []


@pytest.fixture(scope="module")
def agent() -> Agent:
    torch.set_num_threads(1)
    return open_agent(packaged_folder())


@pytest.fixture(scope="module")
def tokens(agent: Agent) -> Tokens:
    return agent.tokens


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    file = tmp_path_factory.mktemp("pictures") / "a.jpg"
    Image.effect_noise((1024, 512), 90).convert("RGB").save(file)
    plate = [500, 250, 560, 264]
    return {"file": str(file), "plate": plate, "street": "Rue Été", "lat": -37.39, "lon": 5.0, "image_id": "a"}


@pytest.fixture(scope="module")
def taught(row: dict[str, object]) -> teacher.Taught:
    made = teacher.teach(row, Toolbox(ToolContext(geocoder=Found(), max_results=1)))
    assert isinstance(made, teacher.Taught)
    return made


def test_a_record_is_answered_with_its_own_letters(tokens: Tokens) -> None:
    for seed in range(20):
        ids, labels = texts.record(tokens, random.Random(seed))
        told = tokens.decode([token for token, label in zip(ids, labels, strict=True) if label == IGNORED])
        said = tokens.decode([label for label in labels if label != IGNORED])
        for line in said.splitlines()[1:5]:
            assert line.partition(": ")[2] in told  # nothing to be known, only to be quoted


def test_a_repeated_string_is_learned_the_second_time_alone(tokens: Tokens) -> None:
    ids, labels = texts.repeat(tokens, random.Random(1), 9)
    assert ids[:9] == ids[10:19] == labels[10:19] and set(labels[:10]) == {IGNORED}


@pytest.mark.parametrize(
    ("degrees", "text"), [(-37.3899, "-37.38"), (5.0019, "5.00"), (-0.004, "-0.00"), (179.9999999, "179.99")]
)
def test_a_coordinate_is_cut_and_not_rounded(degrees: float, text: str) -> None:
    assert texts.shortened(degrees) == text


def test_the_teacher_zooms_asks_and_answers_with_what_the_tool_said(taught: teacher.Taught) -> None:
    calls = [call["function"]["name"] for one in taught.messages for call in one.get("tool_calls", [])]
    assert calls == ["image_zoom_in_tool", "maps_geocode"]
    assert taught.messages[-1]["content"].endswith(
        "<answer>\nCountry: Bland\nCity: Aville\nLatitude: -37.38\nLongitude: 5.00\n</answer>"
    )
    assert len(taught.pictures) == 2  # the view and the zoom


def test_a_place_the_tool_puts_elsewhere_is_rejected(row: dict[str, object]) -> None:
    tools = Toolbox(ToolContext(geocoder=Found(), max_results=1))
    assert teacher.teach({**row, "lat": 10.0}, tools) == "too_far"
    assert teacher.teach({**row, "street": "unknown"}, tools) == "tool_failed"
    assert teacher.teach({**row, "plate": None}, tools) == "no_plate"
    assert not teacher.is_placed({**row, "lat": 10.0}, tools) and teacher.is_placed(dict(row), tools)


def test_the_box_holds_the_plate(row: dict[str, object]) -> None:
    left, top, right, bottom = teacher.plate_box([2237, 983, 2366, 1018], 448 / 4096)
    assert left * 4096 / 448 < 2237 and right * 4096 / 448 > 2366
    assert top * 4096 / 448 < 983 and bottom * 4096 / 448 > 1018


def test_only_the_assistant_is_trained_and_the_street_is_spelled(agent: Agent, taught: teacher.Taught) -> None:
    lesson = lesson_of(taught, agent.encoder)
    said = [token for token, mine in zip(lesson.rest.ids, lesson.rest.is_policy, strict=True) if mine]
    text = agent.tokens.decode(said)
    assert '{"address": "Rue Été"}' in text and text.count("</tool_call>") == 2 and "<tool_response>" not in text
    spelled = agent.tokens.spelled("Rue Été")
    assert any(said[k : k + len(spelled)] == spelled for k in range(len(said)))
    assert agent.fast.image_token not in lesson.shared


def test_seen_pictures_give_the_loss_of_patches(agent: Agent, taught: teacher.Taught) -> None:
    """Frozen sight and the shared beginning change no number: the plain encoder and model are the reference."""
    from tasks.agent.render import training_messages

    lesson = lesson_of(taught, agent.encoder)
    plain = fast_model(agent.fast.model)
    encoder = Encoder(agent.encoder._processor, None)  # type: ignore[arg-type]
    shown = [Image.open(io.BytesIO(one)).convert("RGB") for one in taught.pictures]
    whole = encoder._encode(training_messages(taught.messages, taught.tools), True, None, shown)
    assert whole.pixels is not None and whole.pixels.shape[1] == 1176
    with torch.no_grad():
        expected = plain.loss(pack([whole], plain.image_token, plain.merge))
        found = agent.fast.loss(packed_lessons([lesson, lesson], agent.fast))
    assert float(found) == pytest.approx(float(expected), rel=1e-4)


def test_the_packaged_base_quotes_records_it_never_saw(agent: Agent, tokens: Tokens) -> None:
    """Without it a cold start memorises: an agent that cannot copy a tool's answer cannot profit from tools."""
    batch = packed_texts([texts.record(tokens, random.Random(k)) for k in range(8)], tokens.pad, agent.fast.device)
    with torch.no_grad():
        x = agent.fast.norm(agent.fast.hidden(batch)[batch.predict_at])
        right = (x @ agent.fast.model.lm_head.weight.T).argmax(-1) == batch.targets
    assert float(right.float().mean()) > 0.98


def test_quotes_come_at_the_level_that_all_processes_share(tokens: Tokens) -> None:
    level = torch.zeros(1, dtype=torch.int64)
    source = iter(texts.Quotes(tokens, level, 8, 0))
    assert next(source)[0] == 0
    level[0] = texts.RECORDS
    shapes = [tuple(ids.shape) for found, ids, _ in (next(source) for _ in range(12)) if found == texts.RECORDS]
    assert {8, 2} == {rows for rows, _ in shapes}  # strings and, in smaller batches, records


def test_an_answer_at_once_is_asked_as_spotsft_asks(agent: Agent, row: dict[str, object]) -> None:
    lesson = answer_lesson({**row, "country": "Bland", "city": "Aville"}, agent.encoder)
    said = [token for token, mine in zip(lesson.rest.ids, lesson.rest.is_policy, strict=True) if mine]
    assert "Country: Bland\nCity: Aville\nLatitude: -37.4\nLongitude: 5.0" in agent.tokens.decode(said)
    shown = agent.tokens.decode([one for one in lesson.rest.ids if one != agent.fast.image_token])
    assert "tool" not in agent.tokens.decode(list(lesson.shared)) and "Bland" not in shown.partition("assistant")[0]


def test_study_sees_every_lesson_and_rehearses_between(agent: Agent, tokens: Tokens) -> None:
    rng = random.Random(5)

    def invented() -> Lesson:
        ids = [tokens.encode(rng.choice(texts.LETTERS))[0] for _ in range(12)]
        return Lesson((7, 8), Completion(ids, [k > 3 for k in range(12)]))

    pupil, rehearsed, said = Pupil(agent.fast, 3e-3, 0), [], list[dict[str, float]]()

    def rehearse() -> Packed:
        rehearsed.append(pupil.steps)
        return packed_texts([texts.record(tokens, random.Random(1))], tokens.pad, agent.fast.device)

    lessons = [invented() for _ in range(2)]
    clock = iter([0.0, *[k * 8.0 for k in range(40)]])  # figures are said every 15 seconds
    with pytest.MonkeyPatch.context() as patch:
        # The module's own name for the clock: other threads of this process read the real one.
        patch.setattr("infra.pretrain.cold_start.time", SimpleNamespace(monotonic=lambda: next(clock)))
        study(pupil, lessons, 256.0, 2, [rehearse], said.append)
    assert pupil.steps == 32 and rehearsed == [3, 7, 11, 15, 19, 23, 27, 31]
    assert said[-1]["loss"] < said[0]["loss"] - 0.5
    assert all(weight.grad is None for weight in agent.fast.vision.parameters())


def test_grpo_goes_on_from_what_was_kept(agent: Agent, tmp_path: Path) -> None:
    """The next step after a kill moves every weight as it would have without one."""

    def step(pupil: Pupil) -> dict[str, torch.Tensor]:
        for number, weight in enumerate(pupil.weights):
            weight.grad = torch.full_like(weight, 1e-3 * (number + 1))
        pupil.optimizer.step()
        pupil.optimizer.zero_grad(set_to_none=True)
        return {name: one.clone() for name, one in trained(agent).items()}

    before = {name: one.clone() for name, one in trained(agent).items()}
    going, pupil = Going(tmp_path / "grpo-0.going"), Pupil(agent.fast, 1e-3, 0)
    assert going.opened(agent, pupil) == 0
    kept = step(pupil)
    going.keep(agent, pupil, 40)
    assert going.steps == 40
    after = step(pupil)
    again = Pupil(agent.fast, 1e-3, 0)
    assert going.opened(agent, again) == 40
    assert all(torch.equal(one, kept[name]) for name, one in trained(agent).items())
    found = step(again)
    assert all(torch.equal(found[name], one) for name, one in after.items())
    assert any(not torch.equal(kept[name], one) for name, one in after.items())
    with torch.no_grad():
        for name, one in trained(agent).items():
            one.copy_(before[name])  # the others' agent


def test_a_curve_goes_on_after_the_steps_that_were_kept(tmp_path: Path) -> None:
    """Steps after the last that was kept are done again, and stand in it once."""
    from bench.miniature_pieces import curve

    say = curve(tmp_path, "grpo-0")
    for step in range(1, 8):
        say({"step": step})
    curve(tmp_path, "grpo-0", 5)({"step": 6})
    steps = [json.loads(line)["step"] for line in (tmp_path / "grpo-0.curve.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_a_stage_that_is_no_better_than_the_one_before_is_a_missed_goal() -> None:
    from bench.miniature_report import ladder_goals

    def found(reward: float, least: float) -> dict[str, object]:
        return {
            "reward_interval": [reward - 0.01, reward + 0.01],
            "acc_25km": [0.3, least, 0.4],
            "call_success": [0.95],
        }

    nothing = {"reward_interval": [0.0, 0.0], "acc_25km": [0.0, 0.0, 0.0], "call_success": None}
    parts = {
        "untrained": {"rows": {"base, at once": nothing}},
        "sft-0": {"rows": {"at once": nothing}},
        "cold-0": {"rows": {"agent": found(0.3, 0.25)}},
        "controls-0": {"rows": {"no tools": nothing, "other pictures": {"acc_25km": [0.2, 0.1, 0.3]}}},
        "grpo-0": {"rows": {"agent": found(0.4, 0.3)}},
    }
    held = {goal.what: goal.held for goal in ladder_goals(parts, 0)}
    assert {what for what, holds in held.items() if not holds} == {
        "seed 0: reward + SFT, low end",
        "seed 0: cold, Acc@25 km, low end, against other pictures",
    }
    assert len(held) == 6 and held["seed 0: reward + GRPO, low end"]


def test_gains_are_counted_place_by_place(tmp_path: Path) -> None:
    """One that earns more at every fortieth place: the two intervals overlap, that of the gain is above 0."""
    from bench.miniature_picture import draw
    from bench.miniature_report import gains
    from infra.pretrain.agent_figures import interval

    before = [float(n % 4 == 0) for n in range(1000)]
    after = [1.0 if n % 40 == 1 else reward for n, reward in enumerate(before)]
    rows = {
        name: {"rewards": rewards, "places": len(rewards), "acc_25km": [0.25, 0.22, 0.28]}
        for name, rewards in (("b", before), ("a", after))
    }
    parts = {"cold-0": {"rows": {"agent": rows["b"]}}, "grpo-0": {"rows": {"agent": rows["a"]}}}
    [(name, (more, low, high))] = gains(parts, 0)
    assert name == "+ GRPO" and more == pytest.approx(0.025) and 0 < low < more < high
    assert interval(before)[1] > interval(after)[0]
    [(_, nothing)] = gains({**parts, "grpo-0": parts["cold-0"]}, 0)
    assert nothing == [0, 0, 0]
    draw(tmp_path, parts, [0], tmp_path / "one.svg")
    drawn = (tmp_path / "one.svg").read_text()
    assert ">cold start</text>" in drawn and drawn.count('width="20"') == 2  # a bar for each stage that there is


def test_figures_of_further_worlds_are_those_of_all_places_together() -> None:
    """As if all had been measured at once; a stage that was measured in one world is compared in that one."""
    from bench.miniature_report import gains, with_further_worlds
    from infra.pretrain.agent_figures import Tried, figures

    def tried(n: int, hits: int, calls: int) -> list[Tried]:
        return [Tried(1.0 if i < hits else None, float(i < hits), calls, calls - (i % 3 == 0), 1, "a", "answered")
                for i in range(n)]  # fmt: skip

    def row(n: int) -> list[dict[str, str]]:
        return [{"street": "a" if i % 2 else "b"} for i in range(n)]

    one, other, silent = tried(700, 150, 2), tried(333, 91, 1), tried(50, 0, 0)
    silent = [replace(each, executed=0, found=0) for each in silent]
    parts = {
        "sft-0": {"rows": {"at once": figures(tried(700, 10, 1), row(700))}},
        "cold-0": {"rows": {"agent": figures(one, row(700))}},
        "cold-0-in-held-8": {"rows": {"agent": figures(other, row(333))}},
        "cold-0-in-held-9": {"rows": {"agent": figures(silent, row(50))}},
    }
    found = with_further_worlds(parts)["cold-0"]["rows"]["agent"]
    wanted = figures([*one, *other, *silent], [*row(700), *row(333), *row(50)])
    assert found == {name: value for name, value in wanted.items() if name != "median_km"}
    [(_, gain)] = gains(parts, 0)
    assert gain[0] == pytest.approx(140 / 700)


def test_two_arms_are_compared_at_equal_steps_alone() -> None:
    from bench.miniature_report import at_equal_steps

    parts = {"grpo-0": {}, "random-0": {}, "grpo-train-0": {"steps": 200}, "random-train-0": {"steps": 190}}
    assert at_equal_steps(parts, 0) and not at_equal_steps(parts, 1)
    assert not at_equal_steps({**parts, "random-train-0": {"steps": 110}}, 0)


@pytest.mark.slow
def test_the_miniature_runs_in_tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.miniature import main

    monkeypatch.setenv("GEOFIX_MINIATURE", str(tmp_path))
    assert main(["--size", "tiny", "--seeds", "0"]) == 1  # nothing is learned in two seconds, and it says so
    found = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "tiny").glob("*.json")}
    assert {"at once", "with tools"} <= set(found["sft-0"]["rows"])
    assert {"agent", "agent, sampled"} == set(found["cold-0"]["rows"]) == set(found["grpo-0"]["rows"])
    assert {"no tools", "boards without a word"} <= set(found["controls-0"]["rows"])
    assert (tmp_path / "tiny" / "grpo-0" / "config.json").is_file()
    assert found["grpo-train-0"]["steps"] == 1 and found["grpo-0-in-held-8"]["rows"]["agent"]["places"] == 2
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "tiny").glob("*.json")}
    assert main(["--size", "tiny", "--seeds", "0"]) == 1
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "tiny").glob("*.json")}


@pytest.mark.slow
def test_geocoding_in_process_is_asked_over_the_protocol() -> None:
    from infra.offline.world import World
    from infra.pretrain.teacher import WrongGeocoder, geocoder_of

    world = World(7, 5)
    geocoder = geocoder_of(world)
    [found] = asyncio.run(geocoder.search("Paris, France", 1))
    [wrong] = asyncio.run(WrongGeocoder(geocoder, world, 0).search("Paris, France", 1))
    assert found.city == "Paris" and found.country == "France"
    assert (wrong.lat, wrong.lon) != (found.lat, found.lon) and wrong.name == found.name


@pytest.mark.slow
def test_the_packaged_agent_finds_places_it_was_not_taught(tmp_path: Path) -> None:
    """Eight pictures of held-out cells: some are found, and none where the pictures are exchanged."""
    from infra.offline.world import World
    from infra.pretrain.agent import measured, of_others
    from infra.pretrain.panoramas import WORLD_SEED, WORLD_SIZE, choose, paint_all, rows_of
    from infra.pretrain.teacher import geocoder_of, toolbox_of

    world = World(WORLD_SEED, WORLD_SIZE)
    tools = toolbox_of(geocoder_of(world))
    records = choose(world, 8, True, 0)
    paint_all(world, records, tmp_path, 2)
    rows = rows_of(tmp_path, records)
    agent = open_agent(packaged_folder("finds-1"))
    assert measured(agent, rows, tools, 640)["acc_25km"][0] >= 1 / 8
    assert measured(agent, rows, tools, 640, files=of_others(rows))["acc_25km"][0] == 0
