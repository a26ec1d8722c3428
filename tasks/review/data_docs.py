"""Great Expectations' Data Docs of every table, built offline and cleaned of what they would load from the web."""

import re
import shutil
import tempfile
from html import escape
from pathlib import Path
from typing import Any

from schemas.tables import TABLES
from tasks.lake import Lake
from tasks.review.suites import WITHOUT_SUITE, SuiteFrame, expectations, gx_context, suite_frame

NAME = "data-docs"  # the folder inside the site
# Without the fonts and pictures of its help pages: nothing in the pages shows them.
_UNUSED = ("static/fonts", "static/images")
_REMOTE = (
    re.compile(r"<script[^>]*\bsrc=[\"']?https?:[^>]*>\s*</script>", re.I),
    re.compile(r"<link[^>]*\bhref=[\"']?https?:[^>]*>", re.I),
    re.compile(r"<img[^>]*\bsrc=[\"']?https?:[^>]*>", re.I),
    re.compile(r"<iframe.*?</iframe>", re.I | re.S),
)
_HEAD = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'self' 'unsafe-inline' data:\">"
    "<style>body{font:15px/1.5 system-ui,sans-serif;margin:1.5rem;max-width:80rem}table{border-collapse:collapse}"
    "td,th{border:1px solid #ddd;padding:.3rem .6rem;text-align:left;vertical-align:top}"
    ".navbar,.modal,footer{display:none}.row{margin:.6rem 0}a{color:#0b5c8e}</style>"
)


def write_data_docs(lake: Lake, site: Path) -> None:
    """Validate all live rows of every table and write the pages into the site's folder."""
    frames = [
        (name, suite_frame(lake.read(name), expectations(TABLES[name])))
        for name in lake.existing()
        if name not in WITHOUT_SUITE
    ]
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "docs"
        _build(made, frames)
        for unused in _UNUSED:
            shutil.rmtree(made / unused, ignore_errors=True)
        for page in made.rglob("*.html"):
            page.write_text(without_web(page.read_text("utf-8")), "utf-8")
        (made / "index.html").write_text(_index(made), "utf-8")
        shutil.rmtree(site / NAME, ignore_errors=True)
        site.mkdir(parents=True, exist_ok=True)
        shutil.copytree(made, site / NAME)


def _build(folder: Path, frames: list[tuple[str, SuiteFrame]]) -> None:
    import great_expectations as gx

    context = gx_context()
    config: Any = {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "show_how_to_buttons": False,
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder)},
    }
    context.add_data_docs_site(site_name="review", site_config=config)
    source = context.data_sources.add_pandas("lake")
    for name, frame in frames:
        batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("live rows")
        suite = context.suites.add(gx.ExpectationSuite(name=name, expectations=expectations(TABLES[name])))
        defined = gx.ValidationDefinition(name=name, data=batch, suite=suite)
        context.validation_definitions.add(defined).run(batch_parameters={"dataframe": frame})
    context.build_data_docs(site_names=["review"])


def _index(made: Path) -> str:
    """A list of the pages: the tables of Great Expectations' own first page are drawn by scripts from the web."""
    rows = []
    for page in sorted(made.glob("validations/**/*.html")):
        link = escape(page.relative_to(made).as_posix())
        name = escape(page.relative_to(made / "validations").parts[0])
        rows.append(f'<li><a href="{link}">{name}</a> (<a href="expectations/{name}.html">its suite</a>)</li>')
    title = "Data Docs: every table against its contract"
    return (
        f"<!doctype html><html><head>{_HEAD}<title>{title}</title></head><body><h1>{title}</h1><ul>{''.join(rows)}</ul>"
    )


def without_web(page: str) -> str:
    """The page without scripts, styles and pictures from elsewhere, and with a policy that forbids them."""
    for pattern in _REMOTE:
        page = pattern.sub("", page)
    return page.replace("<head>", f"<head>{_HEAD}", 1)
