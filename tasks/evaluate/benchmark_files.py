"""What is published of the benchmark of a month: manifest, signature and card; and how others check them."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import polars as pl

from schemas.errors import InputError
from schemas.settings.benchmark import BenchmarkSettings
from tasks.evaluate.fresh_benchmark import STAGE, last_month, truth_digest
from tasks.lake import Lake
from tasks.lake.signing import is_signed, public_key
from tasks.runtime.runner import Context, Row, StageResult, run

MANIFEST, SIGNATURE, CARD = "benchmark.json", "benchmark.json.sig", "README.md"


@dataclass(frozen=True)
class DrawnMonth:
    """The benchmark of a month, published."""

    manifest: dict[str, Any]
    card: str
    folder: str


def draw_month(context: Context, settings: BenchmarkSettings) -> tuple[StageResult, DrawnMonth | None]:
    """Draw, sign and publish a month; none where no picture is left. One that stands is only published again."""
    result = run(STAGE, settings, context)
    month = settings.month or last_month(datetime.now(UTC).date())
    rows = context.lake.read("benchmarks").filter(pl.col("month") == month).to_dicts()
    if not rows:
        return result, None
    key, manifest = publish(context.lake, rows[0]), json.loads(rows[0]["manifest_json"])
    return result, DrawnMonth(manifest, card(manifest, rows[0]["public_key"]), context.lake.blobs.uri(key))


def folder_key(month: str) -> str:
    """The folder of a month inside the lake."""
    return f"reports/benchmarks/{month}"


def publish(lake: Lake, row: Row) -> str:
    """Write manifest, signature and card of a month; returns the folder's key."""
    signature = json.dumps({"signature": row["signature"], "public_key": row["public_key"]}, indent=1)
    key = folder_key(row["month"])
    for name, text in {
        MANIFEST: row["manifest_json"],
        SIGNATURE: signature,
        CARD: card(json.loads(row["manifest_json"]), row["public_key"]),
    }.items():
        lake.blobs.put(f"{key}/{name}", text.encode())
    return key


def card(manifest: dict[str, Any], key: str) -> str:
    """What the set of a month is and why nothing in it can be known, from the manifest alone."""
    counts, proof = manifest["counts"], manifest["proof"]
    rejected = [f"| rejected: {reason.replace('_', ' ')} | {count:,} |" for reason, count in counts["rejected"].items()]
    other = [f"| {reason.replace('_', ' ')} | {count:,} |" for reason, count in counts["other_days"].items()]
    nearest = proof["nearest_training_cell_km"]
    cutoffs = [f"- {name}: {day}" for name, day in manifest["cutoffs"].items()]
    return "\n".join(
        [
            f"# geofix benchmark of {manifest['month']}",
            "",
            f"{counts['kept']:,} pictures captured after {manifest['captured_after']}, until "
            f"{manifest['captured_until']}, drawn from snapshot `{manifest['snapshot_id']}`.",
            "",
            *(["Cut-offs of models' training data (last day):", "", *cutoffs, ""] if cutoffs else []),
            "## Counts",
            "",
            *("| pictures | |", "|---|---:|"),
            f"| benchmark split of the snapshot | {counts['benchmark_split']:,} |",
            *other,
            f"| of these days, in | {counts['in']:,} |",
            *rejected,
            f"| kept | {counts['kept']:,} |",
            "",
            "## Proof",
            "",
            f"- All training: {proof['training_pictures']:,} pictures in {proof['training_cells']:,} cells of 1° by 1°"
            f", of {proof['training_snapshots']:,} approved snapshots (splits train and validation) and "
            f"{proof['training_rows']:,} training rows of models.",
            f"- Nearest training cell to any picture here: "
            f"{'there is none' if nearest is None else f'at least {nearest:,} km'} ({proof['least_km']:g} km wanted).",
            f"- Copies, mirrored ones and parts too, looked for among {proof['copies_looked_for_among']:,} of these "
            f"training pictures; {proof['copies_found']:,} found and left out. Bytes and ids were compared with all.",
            "",
            "## Signature",
            "",
            f"`{MANIFEST}` is signed with Ed25519; public key `{key}`. Check it with",
            "",
            f"    geofix benchmark --verify --folder . --key {key}",
            "",
            "It names each picture by id, SHA-256 and a digest of its position; pictures and positions are those of "
            "the snapshot: `geofix export`.",
            "",
        ]
    )


def check_files(files: dict[str, str], key: str | None) -> dict[str, Any]:
    """The manifest of a published folder, or an InputError: not signed by this key, or changed since."""
    try:
        signature_file = json.loads(files[SIGNATURE])
        signature, own = str(signature_file["signature"]), str(signature_file["public_key"])
        signed = is_signed(files[MANIFEST], signature, key or own)
        manifest: dict[str, Any] = json.loads(files[MANIFEST])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"this is no published benchmark: {MANIFEST} or {SIGNATURE} cannot be read") from error
    if not signed:
        raise InputError(f"{MANIFEST} was changed after it was signed, or another key than {key or own} signed it")
    if files.get(CARD) != card(manifest, own):
        raise InputError(f"{CARD} is not the card of {MANIFEST}: it was changed, or written by another version")
    return manifest


@dataclass(frozen=True)
class Checked:
    """What a month's signature and pictures are found to be."""

    month: str
    pictures: int
    withdrawn: int  # no longer in the lake, by somebody's wish
    problems: tuple[str, ...]


def check_months(lake: Lake) -> list[Checked]:
    """Every month of the lake: its signature, and each picture's bytes and position against what was signed."""
    checks = []
    gone = set(lake.read("withdrawals", columns=["image_id"])["image_id"])
    for row in lake.read("benchmarks").sort("month").to_dicts():
        problems = []
        if row["public_key"] != public_key(lake) or not is_signed(
            row["manifest_json"], row["signature"], row["public_key"]
        ):
            problems.append("the signature does not fit")
        pictures = json.loads(row["manifest_json"])["pictures"]
        wanted = pl.col("image_id").is_in([picture["image_id"] for picture in pictures])
        images = lake.scan("images").filter(wanted).select("image_id", "sha256", "lat", "lon", "extension")
        have = {
            (image_id, sha256, truth_digest(lat, lon))
            for image_id, sha256, lat, lon, extension in lake.collect("images", images).unique().iter_rows()
            if lake.blobs.find(lake.images.key(sha256, extension)) is not None
        }
        for picture in pictures:
            if (
                picture["image_id"] not in gone
                and (picture["image_id"], picture["sha256"], picture["truth"]) not in have
            ):
                problems.append(f"picture {picture['image_id']} is gone, or has other bytes or another position")
        withdrawn = sum(picture["image_id"] in gone for picture in pictures)
        checks.append(Checked(row["month"], len(pictures), withdrawn, tuple(problems)))
    return checks
