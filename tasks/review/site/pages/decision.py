"""The decision: the verdict, what changed since the last approved snapshot, a sample to mark, and how to decide."""

import json

import polars as pl

from tasks.review.site.blocks import Block, bars, commands, figure, figures, heading, number, pictures, table, words
from tasks.review.site.compare import COMPARED, Drift, changes, drifts
from tasks.review.site.page import Source, page
from tasks.review.site.pictures import reason_link
from tasks.review.site.precision import label_text, precision_of, sampled_ids
from tasks.review.site.words import day, meaning, moment, place_name
from tasks.runtime.snapshots import verdict_text

AT_A_GLANCE = 8  # pictures on the first page
LARGEST = 6  # distributions drawn; the others are in the table


@page(
    "start",
    "Verdict",
    "Decision",
    ("images", "labels", "places", "rejects", "judgements", "failures", "marks", "snapshots"),
    order=0,
)
def start_page(source: Source) -> list[Block]:
    """The verdict first."""
    counts = source.counts
    return [
        _verdict(source),
        figures(
            figure(counts.get("places", 0), "planned places", link="map"),
            figure(counts.get("images", 0), "pictures fetched", link="pictures"),
            figure(counts.get("labels", 0), "pictures kept", "good", "pictures?status=kept"),
            figure(counts.get("countries", 0), "countries", link="distributions"),
            figure(counts.get("rejects", 0), "rejected", link="pictures?status=rejected"),
            figure(counts.get("failures", 0), "to retry", "bad" if counts.get("failures") else "plain", "failures"),
        ),
        *_open_questions(source),
        *_glance(source),
        *_what_changed(source),
    ]


def _glance(source: Source) -> list[Block]:
    """A few kept pictures, of as many countries as there are; what was taken from a street first."""
    kinds = source.read("images").select("image_id", is_scene=pl.col("kind") == "satellite")
    rows = source.read("labels").join(kinds, on="image_id", how="left").sort("is_scene", "image_id", nulls_last=True)
    # One of every country, then a second of each, and so on.
    turn = pl.int_range(pl.len()).over("country")
    shown = rows.with_columns(turn=turn).sort("turn", "country", nulls_last=True).head(AT_A_GLANCE)
    if shown.is_empty():
        return []
    return [
        heading("At a glance", f"{shown.height:,} of {rows.height:,} kept pictures; “All pictures” has the others"),
        pictures("", shown["image_id"].to_list(), _place_names(shown)),
    ]


def _verdict(source: Source) -> Block:
    precision = precision_of(source)
    return {
        "block": "verdict",
        "says": verdict_text(source.snapshot),
        "precision": precision.sentence if precision else "",
    }


def _open_questions(source: Source) -> list[Block]:
    """What a person has to decide or look at, most urgent first."""
    rows: list[tuple[str, str]] = []
    links: list[str] = []

    def ask(what: str, why: str, link: str) -> None:
        rows.append((what, why))
        links.append(link)

    for check in source.checks:
        if not check["passed"]:
            examples = f", such as {', '.join(check['examples'])}" if check["examples"] else ""
            ask(
                f"The check “{check['says']}” of {check['table']} fails",
                f"{number(check['unexpected'])} of {number(check['checked'])} rows{examples}",
                "checks",
            )
    failures = source.read("failures").height
    if failures:
        ask(
            f"{number(failures)} items failed",
            "The next run tries them again; approve without them, or wait.",
            "failures",
        )
    precision = precision_of(source)
    if precision is None:
        ask(
            "No label has been looked at by a person",
            "Mark a sample right or wrong: the precision of the labels becomes a part of this verdict.",
            "sample",
        )
    elif precision.low < source.settings.label_precision:
        ask(
            "Label precision is not shown to be high enough",
            f"{precision.sentence}; {source.settings.label_precision:.0%} is wanted. More marks narrow the interval.",
            "sample",
        )
    for drift in drifts(source):
        if drift.moved >= source.settings.drift_alarm:
            ask(
                f"{drift.title} drifted by {drift.moved:.0%}",
                f"since the last approved snapshot; most: {drift.most}",
                "distributions",
            )
    if source.snapshot["status"] == "pending":
        ask("The snapshot waits for your decision", "Training refuses it until it is approved.", "reproduce")
    if not rows:
        return [heading("What needs a decision"), words("Nothing: every check passes and nothing is open.", "good")]
    return [heading("What needs a decision"), table(["what", "why"], rows, links=links)]


def _what_changed(source: Source) -> list[Block]:
    """Added, removed, changed pictures, and how far every distribution moved."""
    compared = changes(source)
    if source.before is None or compared is None:
        return [
            heading("What changed"),
            words("This is the first snapshot: there is no approved one to compare it with.", "muted"),
            *_rejected_table(source),
        ]
    drifted = drifts(source)
    return [
        heading("What changed", f"since snapshot {source.before.snapshot_id}, which was approved last"),
        figures(
            figure(compared.added.height, "kept pictures added", link="changes"),
            figure(compared.removed.height, "removed", link="changes"),
            figure(compared.withdrawn.height, "withdrawn", link="changes"),
            figure(compared.changed.height, "changed in bytes, address or split", link="changes"),
            figure(compared.same, "the same"),
        ),
        table(
            ["distribution", "moved", "", "most"],
            [(drift.title, f"{drift.moved:.1%}", drift.moved, drift.most) for drift in drifted],
            ["text", "number", "bar", "text"],
        ),
        words("Moved: the share of pictures that would have to change their value to make both the same.", "muted"),
        *(_drawn(drift) for drift in sorted(drifted, key=lambda drift: -drift.moved)[:LARGEST] if drift.moved > 0),
        *_rejected_table(source),
    ]


def _drawn(drift: Drift) -> Block:
    return bars(
        f"{drift.title}: moved {drift.moved:.1%}",
        drift.labels,
        {"last approved": drift.before, "now": drift.now},
        "share",
    )


def _rejected_table(source: Source) -> list[Block]:
    reasons = source.counts.get("rejects_by_reason", {})
    rows = [(meaning(reason), reason, count) for reason, count in reasons.items()]
    return [
        heading("Rejected, by reason", "Each line leads to its pictures."),
        table(
            ["meaning", "reason", "count"],
            rows,
            ["text", "code", "number"],
            [reason_link(source, reason) for reason in reasons],
            empty="Nothing was rejected.",
        ),
    ]


MOST = 600


@page(
    "changes",
    "What changed",
    "Decision",
    ("images", "labels", "rejects", "snapshots"),
    about="Kept pictures against the snapshot that was approved last.",
    order=10,
)
def changes_page(source: Source) -> list[Block]:
    """The kept pictures of both snapshots, compared by id."""
    changed = changes(source)
    if changed is None:
        return [words("This is the first snapshot: there is no approved one to compare it with.", "muted")]
    added, removed = changed.added, changed.removed
    lines = []
    for row in changed.changed.to_dicts():
        told = [
            f"{name}: {row[f'{name}_old']} → {row[name]}" for name in COMPARED[1:] if row[name] != row[f"{name}_old"]
        ]
        told += ["other bytes"] if row["sha256"] != row["sha256_old"] else []
        lines.append((row["image_id"], ", ".join(told)))
    rejects = dict(source.read("rejects").select("item_id", "reason").iter_rows())
    there = set(source.read("images")["image_id"])
    return [
        heading(f"Added: {added.height:,}", _first_of(added)),
        pictures("", added.head(MOST)["image_id"].to_list(), _place_names(added.head(MOST))),
        heading(f"Removed: {removed.height:,}", _first_of(removed)),
        table(
            ["picture", "was", "why it is gone"],
            [
                (image_id, place_name(city, region, country), _why_gone(image_id, rejects, there))
                for image_id, city, region, country in removed.head(MOST)
                .select("image_id", "city", "region", "country")
                .rows()
            ],
            ["picture", "text", "text"],
        ),
        heading(f"Withdrawn: {changed.withdrawn.height:,}", "taken out with all that was made of them"),
        table(
            ["was", "why", "when"],
            [
                (place_name(city, region, country), why, moment(at))
                for country, region, city, why, at in changed.withdrawn.head(MOST).rows()
            ],
        ),
        heading(f"Changed: {len(lines):,}"),
        table(["picture", "what"], lines[:MOST], ["picture", "text"]),
    ]


def _why_gone(image_id: str, rejects: dict[str, str], there: set[str]) -> str:
    if image_id in rejects:
        return rejects[image_id].replace("_", " ")
    return "no longer labelled" if image_id in there else "the picture itself has ended"


def _first_of(rows: pl.DataFrame) -> str:
    return f"the first {MOST}" if rows.height > MOST else ""


def _place_names(rows: pl.DataFrame) -> list[str]:
    return [place_name(city, country) for city, country in rows.select("city", "country").iter_rows()]


@page(
    "sample",
    "Mark a sample",
    "Decision",
    ("images", "labels", "marks"),
    about="Look at each picture and say whether its label is right. A random sample tells the precision of all labels.",
    order=20,
)
def sample_page(source: Source) -> list[Block]:
    """The pictures to mark, and what marks have shown so far."""
    chosen = sampled_ids(source)
    images = source.read("images").select("image_id", "captured_at", "extension", "attribution")
    rows = source.read("labels").with_columns(label=label_text()).join(images, on="image_id", how="left")
    by_id = {row["image_id"]: row for row in rows.to_dicts()}
    items = [
        {
            "id": image_id,
            **{name: by_id[image_id][name] for name in ("sha256", "extension", "label", "lat", "lon")},
            "title": place_name(by_id[image_id]["city"], by_id[image_id]["region"], by_id[image_id]["country"]),
            "said": by_id[image_id]["judge_reason"] or "",
            "taken": day(by_id[image_id]["captured_at"]),
            "credit": by_id[image_id]["attribution"] or "",
        }
        for image_id in chosen
    ]
    precision = precision_of(source)
    sentence = precision.sentence if precision else "No marks have been brought in yet."
    return [words(sentence, "good" if precision else "muted"), {"block": "sample", "items": items}]


@page("reproduce", "Decide and reproduce", "Decision", ("runs", "decisions", "snapshots"), order=30)
def reproduce_page(source: Source) -> list[Block]:
    """Commands, table versions, and the run behind each stage."""
    name = source.snapshot_id[:12]
    runs = source.read("runs").sort("started_at").group_by("stage", maintain_order=True).last()
    decisions = source.read("decisions").filter(pl.col("snapshot_id") == source.snapshot_id).sort("decided_at")
    return [
        heading("Decide"),
        commands(
            source.command(f"approve {name}" + ("" if source.snapshot["checks_passed"] else ' --force --why "…"')),
            source.command(f'reject {name} --why "…"'),
            source.command("review --import marks.json"),
        ),
        table(
            ["decision", "by", "why", "when", "of versions"],
            [
                (row["decision"], row["reviewer"], row["why"] or "", moment(row["decided_at"]), _versions_of(row))
                for row in decisions.to_dicts()
            ],
            empty="No decision has been made about this snapshot.",
        ),
        heading("Look at the same tables", "a snapshot keeps these versions readable for good"),
        table(["table", "version"], sorted(source.versions.items()), ["code", "number"]),
        commands(*(source.command(f"show {table_} --version {at}") for table_, at in sorted(source.versions.items()))),
        heading("Run the same again", "the newest run of each stage; its whole configuration is in the table runs"),
        table(
            ["stage", "run", "code", "configuration", "finished"],
            [
                (
                    *(row[name] or "" for name in ("stage", "run_id", "code_version", "config_hash")),
                    moment(row["finished_at"]),
                )
                for row in runs.to_dicts()
            ],
            ["text", "code", "code", "code", "text"],
        ),
        commands(source.command("show runs --columns stage,config_json --format json")),
    ]


def _versions_of(row: dict[str, str]) -> str:
    return ", ".join(f"{name} v{at}" for name, at in json.loads(row["table_versions_json"]).items())
