"""The history of each picture in words, from the plan to the models trained on it.

`STEPS` names functions of the source that give (image_id, step) pairs, in the order of the data. A later part that
wants to be part of a picture's history adds its function here.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import polars as pl

from tasks.review.site.page import Source
from tasks.review.site.words import day, distance, evidence, meaning, moment, passes, place_name

Step = dict[str, Any]  # title, text, and perhaps facts (name, value), tone, link, when
Told = Iterator[tuple[str, Step]]


def step(title: str, text: str, **more: Any) -> Step:
    """One event; `more` may hold facts, tone, link and when."""
    entry: Step = {"title": title, "text": text}
    for name, value in more.items():
        if value:
            entry[name] = value
    return entry


def planned(source: Source) -> Told:
    """The place that was drawn."""
    places = {row["place_id"]: row for row in source.read("places").to_dicts()}
    for image_id, place_id in source.read("images").select("image_id", "place_id").iter_rows():
        place = places.get(place_id)
        if place is None:
            yield (
                image_id,
                step("Not planned", "It was brought in from a table of photos and answers no planned place."),
            )
            continue
        where = place_name(place["city"], place["admin1"], place["country_name"])
        odds = f", drawn with probability {place['probability']:.3g}" if place["probability"] else ""
        text = f"{where}, cell {place['cell']}{odds}; split {place['split']}."
        yield image_id, step("Planned", text, facts=[["place", place_id], ["plan", place["plan_version"]]])


def fetched(source: Source) -> Told:
    """Where the picture came from, and under which licence."""
    shown = (
        "image_id", "width", "height", "captured_at", "creator", "bytes", "kind", "source", "licence", "source_id",
        "sequence_id", "request_url", "sha256", "notes", "fetched_at",
    )  # fmt: skip
    for row in source.read("images").select(shown).iter_rows(named=True):
        size = f"{row['width']} × {row['height']} pixels" if row["width"] else "size unknown"
        taken = f"taken {day(row['captured_at'])}" if row["captured_at"] else "time unknown"
        by = f" by {row['creator']}" if row["creator"] else ""
        stored = f"{size}, {(row['bytes'] or 0) / 1000:,.0f} kB"
        text = f"{row['kind'].capitalize()} from {row['source']}, {taken}{by}; {stored}."
        facts = [
            ["licence", row["licence"]],
            ["source id", row["source_id"]],
            ["drive", row["sequence_id"]],
            ["asked", row["request_url"]],
            ["SHA-256", row["sha256"]],
            ["remarks", ", ".join(row["notes"] or ())],
        ]
        facts = [fact for fact in facts if fact[1]]
        yield row["image_id"], step("Fetched", text, facts=facts, when=moment(row["fetched_at"]))


def rechecked(source: Source) -> Told:
    """What the source said when it was queried again."""
    for row in source.read("checks").filter(pl.col("subject") == "image").to_dicts():
        text = f"The source was queried again {row['nth']} times; the last time the picture was {row['status']}."
        yield row["subject_id"], step("Looked at again", text, when=moment(row["checked_at"]))


def measured(source: Source) -> Told:
    """What its pixels measure, where curation measures them."""
    shares = ("blur", "brightness", "contrast", "dark_share", "bright_share", "sky_share", "road_share", "blockiness")
    for row in source.read("quality").to_dicts():
        facts = [[name.replace("_", " "), f"{row[name]:.3g}"] for name in shares if row.get(name) is not None]
        sentence = meaning(row["problem"]) if row.get("problem") else "Its pixels were measured."
        yield row["image_id"], step("Measured", sentence, facts=facts)


def placed(source: Source) -> Told:
    """Where base models place it without tools, which makes it easy or hard."""
    for row in source.read("tiers").to_dicts():
        result = (
            f"could not be read ({row['parse_error']})" if row["parse_error"] else f"{distance(row['error_km'])} off"
        )
        yield row["image_id"], step("Placed by a base model", f"{row['model']}: {result}.")


def judged(source: Source) -> Told:
    """Every verdict of every judge."""
    shown = (
        "image_id", "model", "problem", "evidence_json", "score", "localizability", "sub_scores_json", "scenes_json",
        "reason",
    )  # fmt: skip
    for row in source.read("judgements").select(shown).iter_rows(named=True):
        if row["problem"]:
            text = f"{row['model']} gave no verdict: {meaning(row['problem'])} {evidence(row['evidence_json'])}"
            yield row["image_id"], step("Judged", text, tone="bad")
            continue
        score = "" if row["score"] is None else f", score {row['score']:g} of 10"
        verdict = (row["localizability"] or "").replace("_", " ")
        facts = _verdict_facts(row["sub_scores_json"] or "{}", row["scenes_json"] or "{}")
        yield row["image_id"], step("Judged", f"{row['model']}: {verdict}{score}. {row['reason'] or ''}", facts=facts)


@lru_cache(maxsize=4096)  # few verdicts differ in both
def _verdict_facts(sub_scores: str, scenes: str) -> list[list[str]]:
    parts: dict[str, Any] = json.loads(sub_scores)
    facts = [[name.replace("_", " "), f"{value:g}"] for name, value in parts.items() if value is not None]
    seen = [name.replace("_", " ") for name, answer in json.loads(scenes).items() if answer == "yes"]
    return facts + ([["categories", ", ".join(seen)]] if seen else [])


def rejected(source: Source) -> Told:
    """Why a stage refused it."""
    for row in source.read("rejects").to_dicts():
        text = f"{row['stage']}: {meaning(row['reason'])} {evidence(row['evidence_json'])}"
        link = f"pictures?reason={row['reason']}"
        yield row["item_id"], step("Rejected", text, tone="bad", when=moment(row["written_at"]), link=link)


def labelled(source: Source) -> Told:
    """Its address and split."""
    shown = ("image_id", "country", "region", "city", "tier", "split", "written_at")
    for row in source.read("labels").select(shown).iter_rows(named=True):
        where = "; ".join(part for part in (row["country"], row["region"], row["city"]) if part) or "no address"
        tier = f", tier {row['tier']}" if row["tier"] else ""
        text = f"{where}. Split {row['split']}{tier}."
        yield row["image_id"], step("Labelled", text, tone="good", when=moment(row["written_at"]))


def marked(source: Source) -> Told:
    """What people said."""
    for row in source.read("marks").to_dicts():
        note = f": {row['note']}" if row["note"] else "."
        text = f"{row['reviewer']} marked the label “{row['label']}” {row['mark']}{note}"
        tone = "good" if row["mark"] == "right" else "bad"
        yield row["image_id"], step("Marked by a person", text, tone=tone, when=moment(row["marked_at"]))


def noted(source: Source) -> Told:
    """How people would find the place."""
    for row in source.read("notes").to_dicts():
        about = [["author", row["author"]], ["licence", row["licence"]]]
        yield row["image_id"], step("Notes of a person", row["notes"], facts=about, when=moment(row["noted_at"]))


def viewed(source: Source) -> Told:
    """Perspective views cut from it."""
    for row in source.read("views").to_dicts():
        text = f"Yaw {row['yaw_deg']:g}°, pitch {row['pitch_deg']:g}°, {row['fov_deg']:g}° wide."
        yield row["image_id"], step("View cut", text, facts=[["view", row["view_id"]]])


def solved(source: Source) -> Told:
    """Trajectories of agents."""
    for row in source.read("trajectories").drop("messages_json").to_dicts():
        why = f" ({', '.join(reason.replace('_', ' ') for reason in row['reasons'])})" if row["reasons"] else ""
        text = (
            f"{row['recipe']}, {row['tool_calls']} tool calls: {distance(row['error_km'])} off; {row['verdict']}{why}."
        )
        tone = "good" if row["verdict"] == "kept" else "bad"
        yield row["image_id"], step("Solved by agents", text, tone=tone, link=f"trajectory/{row['trajectory_id']}")


def tried(source: Source) -> Told:
    """How hard it is for a policy."""
    for row in source.read("regimes").to_dicts():
        phase = f"phase {row['phase']} of the curriculum" if row["phase"] else "not used for GRPO"
        yield row["image_id"], step("Tried by a policy", f"{row['policy']}: {passes(row)}; {phase}.", link="difficulty")


def trained(source: Source) -> Told:
    """Training rows made of it, and the models that were trained on them or on such a model."""
    models = source.read("models").to_dicts()
    children: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for model in models:
        children[model["parent_id"]].append(model)
    samples = source.read("samples").select("sample_id", "image_id", "training_stage", "snapshot_id")
    for sample_id, image_id, stage, snapshot_id in samples.iter_rows():
        direct = [m for m in models if m["training_stage"] == stage and m["snapshot_id"] == snapshot_id]
        after = [child for model in direct for child in _descendants(model["model_id"], children)]
        names = [f"{model['training_stage']} {model['model_id']}" for model in direct]
        names += [f"{model['training_stage']} {model['model_id']} (through its parent)" for model in after]
        sentence = (
            f"Models trained on it: {', '.join(dict.fromkeys(names))}." if names else "No model was trained on it yet."
        )
        yield image_id, step(f"Training row for {stage}", sentence, facts=[["sample", sample_id]], link="training")


def _descendants(model_id: str, children: dict[str | None, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    for child in children.get(model_id, ()):
        yield child
        yield from _descendants(child["model_id"], children)


def answered(source: Source) -> Told:
    """What policies answered in an evaluation."""
    for row in source.read("predictions").to_dicts():
        result = (
            f"could not be read ({row['parse_error']})" if row["parse_error"] else f"{distance(row['error_km'])} off"
        )
        yield row["image_id"], step("Asked in an evaluation", f"{row['policy']}: {result}.", link="leaderboard")


STEPS: tuple[Callable[[Source], Told], ...] = (
    planned, fetched, rechecked, measured, judged, placed, rejected, labelled, marked, noted, viewed, solved, tried,
    trained, answered,
)  # fmt: skip
READS = (
    "places", "images", "checks", "quality", "tiers", "judgements", "rejects", "labels", "marks", "notes", "views",
    "trajectories", "regimes", "samples", "models", "predictions", "duplicates",
)  # fmt: skip


def histories(source: Source) -> dict[str, list[Step]]:
    """Steps by picture, in the order of the data."""
    steps: dict[str, list[Step]] = {image_id: [] for image_id in source.read("images")["image_id"]}
    for tell in STEPS:
        for image_id, entry in tell(source):
            if image_id in steps:
                steps[image_id].append(entry)
    return steps
