"""The first page: the verdict, what changed since the last approved snapshot, what needs a decision."""

from tasks.review.site.blocks import Block, bars, figure, figures, heading, number, table, words
from tasks.review.site.compare import changes
from tasks.review.site.drift import Drift, drifts
from tasks.review.site.page import Page, Source
from tasks.review.site.pictures import reason_link
from tasks.review.site.precision import precision_of
from tasks.review.site.words import meaning

LARGEST = 6  # distributions drawn; the others are in the table


def make(source: Source) -> list[Block]:
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
        *_changes(source),
    ]


def _verdict(source: Source) -> Block:
    failing = [check for check in source.checks if not check["passed"]]
    found = precision_of(source)
    return {
        "block": "verdict",
        "checks": len(source.checks),
        "failing": [f"{check['table']}: {check['says']}" for check in failing],
        "precision": found.sentence if found else "",
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
    found = precision_of(source)
    if found is None:
        ask(
            "No label has been looked at by a person",
            "Mark a sample right or wrong: the precision of the labels becomes a part of this verdict.",
            "sample",
        )
    elif found.low < source.settings.label_precision:
        ask(
            "Label precision is not shown to be high enough",
            f"{found.sentence}; {source.settings.label_precision:.0%} is wanted. More marks narrow the interval.",
            "sample",
        )
    for one in drifts(source):
        if one.moved >= source.settings.drift_alarm:
            ask(
                f"{one.title} drifted by {one.moved:.0%}",
                f"since the last approved snapshot; most: {one.most}",
                "distributions",
            )
    if source.snapshot["status"] == "pending":
        ask("The snapshot waits for your decision", "Training refuses it until it is approved.", "reproduce")
    if not rows:
        return [heading("What needs a decision"), words("Nothing: every check passes and nothing is open.", "good")]
    return [heading("What needs a decision"), table(["what", "why"], rows, links=links)]


def _changes(source: Source) -> list[Block]:
    """Added, removed, changed pictures, and how far every distribution moved."""
    compared = changes(source)
    if source.before is None or compared is None:
        return [
            heading("What changed"),
            words("This is the first snapshot: there is no approved one to compare it with.", "muted"),
            *_rejected_table(source),
        ]
    found = drifts(source)
    return [
        heading("What changed", f"since snapshot {source.before.snapshot_id}, which was approved last"),
        figures(
            figure(compared.added.height, "kept pictures added", link="changes"),
            figure(compared.removed.height, "removed", link="changes"),
            figure(compared.changed.height, "changed in bytes, address or split", link="changes"),
            figure(compared.same, "the same"),
        ),
        table(
            ["distribution", "moved", "", "most"],
            [(one.title, f"{one.moved:.1%}", one.moved, one.most) for one in found],
            ["text", "number", "bar", "text"],
        ),
        words("Moved: the share of pictures that would have to change their value to make both the same.", "muted"),
        *(_drawn(one) for one in sorted(found, key=lambda one: -one.moved)[:LARGEST] if one.moved > 0),
        *_rejected_table(source),
    ]


def _drawn(one: Drift) -> Block:
    return bars(
        f"{one.title}: moved {one.moved:.1%}", one.labels, {"last approved": one.before, "now": one.now}, "share"
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


PAGE = Page(
    id="start",
    title="Verdict",
    group="Decision",
    reads=("images", "labels", "places", "rejects", "judgements", "failures", "marks", "snapshots"),
    make=make,
    order=0,
)
