"""Builds the site of a snapshot: a folder that opens from a file, `<lake>/reports/<snapshot>/index.html`.

A page opened from a file cannot fetch, so data comes as scripts, `data/<name>.js`, that hand their value to
`geofix.push`. A page is made again only when a table it reads has another version or its code changed.
"""

import importlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl

from schemas.settings.review import ReviewSettings
from tasks.lake import Lake
from tasks.lake.blobs import BlobMissing
from tasks.review.site import pages as page_package
from tasks.review.site.blocks import Block
from tasks.review.site.files import Folder, script
from tasks.review.site.page import GROUPS, Page, Source, code_digest
from tasks.review.site.thumbnails import write_pictures
from tasks.runtime.items.identity import digest

HERE = Path(__file__).parent
ASSETS = HERE / "assets"
MADE = "made.json"  # what each page was made from, and with which settings; written last
PLAN = "reports/plan"  # the report of the plan that stands now
_OWN = ("status", "reviewer", "why", "reviewed_at", "checks_json", "counts_json")  # what pages show of a snapshot's row


def folder_key(snapshot_id: str) -> str:
    """The site's folder inside the lake."""
    return f"reports/{snapshot_id}"


def all_pages() -> list[Page]:
    """Every page, in the order of the navigation."""
    names = sorted(module.name for module in pkgutil.iter_modules(page_package.__path__))
    modules = [importlib.import_module(f"{page_package.__name__}.{name}") for name in names]
    pages = [page for module in modules for page in vars(module).values() if isinstance(page, Page)]
    return sorted(pages, key=lambda page: (GROUPS.index(page.group), page.order, page.id))


def report_path(snapshot_id: str) -> str:
    """The site's first page inside the lake."""
    return f"{folder_key(snapshot_id)}/index.html"


def build_site(lake: Lake, snapshot: Mapping[str, Any], settings: ReviewSettings) -> Path:
    """Make the site, or what of it is out of date; returns its first page."""
    source = Source(lake, dict(snapshot), settings, _approved_before(lake, dict(snapshot), settings))
    key = folder_key(source.snapshot_id)
    folder = Folder(lake.blobs.local(key))
    made: dict[str, str] = json.loads(folder.read(MADE) or "{}")
    code = _code()
    if made.get("assets") != code:
        _copy_assets(folder)
        made["assets"] = code
    for table in ("images", "labels"):
        source.read(table)  # once, before two threads ask for it
    with ThreadPoolExecutor(1) as beside:  # small pictures are made by other processes while pages are written
        pictures = beside.submit(write_pictures, source, folder)
        shown = _write_pages(source, folder, made, code)
        about = _about(folder, source, shown, pictures.result())
    folder.write("data/site.js", script("site", about))
    made["settings"] = settings.model_dump_json()
    folder.write(MADE, json.dumps(made, indent=1, sort_keys=True).encode())
    lake.blobs.push(key, last=MADE)
    return folder.path / "index.html"


def _write_pages(source: Source, folder: Folder, made: dict[str, str], code: str) -> list[Page]:
    """Write the pages that are out of date and note in `made` what they were made from; returns all pages shown."""
    shown = []
    for page in all_pages():
        if not page.shown(source):
            continue
        shown.append(page)
        state = _state(page, source, code)
        if made.get(page.id) == state and folder.has(f"data/{page.id}.js"):
            continue
        made.pop(page.id, None)
        for name, value in page.files(source) if page.files else ():
            folder.write(f"data/{name}.js", script(name, value))
        blocks: list[Block] = page.make(source)
        folder.write(f"data/{page.id}.js", script(page.id, blocks))
        made[page.id] = state
    return shown


def renew_site(lake: Lake, snapshot: Mapping[str, Any]) -> None:
    """Bring a site that exists up to date, with the settings it was made with; the next review makes a missing one."""
    settings = site_settings(lake, snapshot["snapshot_id"])
    if settings is None:
        return
    if not lake.blobs.is_local:
        lake.blobs.pull(folder_key(snapshot["snapshot_id"]))
    build_site(lake, snapshot, settings)


def site_settings(lake: Lake, snapshot_id: str) -> ReviewSettings | None:
    """The settings a snapshot's site was made with; None while there is no site."""
    try:
        made = json.loads(lake.blobs.get(f"{folder_key(snapshot_id)}/{MADE}"))
    except BlobMissing:
        return None
    return ReviewSettings.model_validate_json(made["settings"])


def keep_plan(lake: Lake, snapshot_id: str) -> None:
    """Copy the plan's map and tables into the site's folder: the next plan replaces them."""
    folder = Folder(lake.blobs.local(folder_key(snapshot_id)))
    for blob in lake.blobs.list(PLAN):
        if blob.key.endswith((".png", ".csv")):
            folder.write(f"plan/{PurePosixPath(blob.key).name}", lake.blobs.get(blob.key))


def _about(folder: Folder, source: Source, shown: list[Page], pictures: Mapping[str, Any]) -> dict[str, Any]:
    """What every page needs: the navigation, the decision, how to name this lake in a command."""
    row = source.snapshot
    decision = {name: _plain(row.get(name)) for name in ("status", "reviewer", "why", "reviewed_at", "created_at")}
    return {
        "snapshot": source.snapshot_id,
        "lake": source.lake.uri,
        "decision": {**decision, "checks_passed": bool(row.get("checks_passed"))},
        "plan": sorted(path.name for path in (folder.path / "plan").glob("*")),
        "pages": [
            {"id": page.id, "title": page.title, "group": page.group, "about": page.about, "hidden": page.hidden}
            for page in shown
        ],
        **pictures,
    }


def _plain(value: Any) -> Any:
    return f"{value:%Y-%m-%d %H:%M} UTC" if hasattr(value, "strftime") else value


def _state(page: Page, source: Source, code: str) -> str:
    """A digest of what the page is made from: table versions, and of the snapshot itself its row."""
    row = source.snapshot
    versions = {table: source.version(table) for table in page.reads if table != "snapshots"}
    own = [str(row.get(name)) for name in _OWN] if "snapshots" in page.reads else []
    before = source.before.snapshot_id if source.before else ""
    withdrawn = source.lake.version("withdrawals")
    return digest("page", page.id, code, versions, before, own, withdrawn, source.settings.model_dump_json())


def _approved_before(lake: Lake, snapshot: dict[str, Any], settings: ReviewSettings) -> Source | None:
    rows = lake.read("snapshots").filter(
        (pl.col("status") == "approved") & (pl.col("snapshot_id") != snapshot["snapshot_id"])
    )
    if snapshot.get("created_at") is not None:
        rows = rows.filter(pl.col("created_at") <= snapshot["created_at"])
    rows = rows.sort("created_at", "snapshot_id")
    return Source(lake, rows.row(-1, named=True), settings) if rows.height else None


def _asset_files() -> Iterator[Path]:
    return (path for path in sorted(ASSETS.rglob("*")) if path.is_file())


def _copy_assets(folder: Folder) -> None:
    for path in _asset_files():
        name = path.relative_to(ASSETS).as_posix()
        folder.write(name if name == "index.html" else f"assets/{name}", path.read_bytes())


@cache
def _code() -> str:
    return code_digest([*HERE.rglob("*.py"), *HERE.parent.glob("*.py"), *_asset_files()])
