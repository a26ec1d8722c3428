"""Links of reports lead where a browser can follow them."""

from pathlib import Path
from typing import Any

import pytest

from flows import artifacts
from flows.served_reports import FILE, announce
from flows.session import Session
from schemas.config import Config
from tasks.lake import Lake
from tasks.runtime.report import Report


@pytest.mark.parametrize("url", [None, "https://data.example/reports/"])
def test_a_link_is_made_only_where_a_web_server_shows_the_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str | None
) -> None:
    links: list[dict[str, Any]] = []
    pages: list[dict[str, Any]] = []
    monkeypatch.setattr("flows.recording.is_recorded", lambda: True)
    monkeypatch.setattr(artifacts, "create_link_artifact", lambda **given: links.append(given))
    monkeypatch.setattr(artifacts, "create_markdown_artifact", lambda **given: pages.append(given))
    session = Session(Config.model_validate({"flows": {"reports_url": url}}), Lake(tmp_path / "mit Leerraum"))
    picture = session.lake.root / "reports" / "plan" / "the map.png"
    artifacts.publish_report("plan", Report("# plan", {"map": picture}), session.report_address)
    assert [one["link"] for one in links] == (["https://data.example/reports/plan/the%20map.png"] if url else [])
    assert (str(picture) in pages[0]["markdown"]) is not bool(url) and "file:" not in pages[0]["markdown"]
    artifacts.publish_verdict("snapshot 44df passes", session.report_address("reports/44df/index.html"))
    report = "https://data.example/reports/44df/index.html"
    assert [one["link"] for one in links[1:]] == ([report] if url else [])
    assert (f"<{report}>" in pages[-1]["markdown"]) is bool(url)
    shown = session.report_address("reports/44df/index.html")
    assert shown == (
        "https://data.example/reports/44df/index.html"
        if url
        else str(tmp_path / "mit Leerraum/reports/44df/index.html")
    )


def test_reports_are_links_while_they_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(Config(), Lake(tmp_path))
    key = "reports/44df/index.html"
    assert session.report_address(key) == str(tmp_path / key)
    announce(session.lake, "http://127.0.0.1:8790")
    assert session.report_address(key) == "http://127.0.0.1:8790/44df/index.html"
    assert (session.lake.state / FILE).stat().st_mode & 0o077 == 0
    monkeypatch.setattr("flows.served_reports.start_time", lambda pid: None)
    assert session.report_address(key) == str(tmp_path / key), "its server is gone"
