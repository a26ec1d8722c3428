"""A decision and a review of the same snapshot at the same time: neither overwrites the other."""

import threading
import time
from pathlib import Path
from typing import Any

from tasks.lake import Commit, Lake
from tasks.review import auto_approve
from tasks.runtime.items.stage_lock import stage_lock


def row(made_from: str, **more: Any) -> dict[str, Any]:
    fixed = {"snapshot_id": "5" * 24, "item_id": "5" * 24, "stage": "review", "table_versions_json": "{}"}
    return {**fixed, "status": "pending", "checks_passed": True, "report": "r.html", "made_from": made_from, **more}


def test_an_approval_waits_for_a_review_and_keeps_what_it_wrote(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.upsert("snapshots", [row("before", counts_json="{}")], Commit("first", 1))
    approving = threading.Thread(target=auto_approve, args=(Lake(tmp_path), "5" * 24))
    with stage_lock(lake, "review"):
        approving.start()
        time.sleep(0.5)
        assert approving.is_alive()
        lake.upsert("snapshots", [row("after", counts_json='{"places": 1}')], Commit("second", 1))
    approving.join()
    [found] = lake.read("snapshots").to_dicts()
    assert (found["status"], found["made_from"], found["counts_json"]) == ("approved", "after", '{"places": 1}')
