"""What the pipeline does about its snapshot: goes on, stops, or asks the reviewer."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import decision
from flows.decision import Decision, conclude_review, snapshot_approved, suspended_for
from flows.display import Display, display
from flows.session import Session
from schemas.config import Config
from schemas.errors import StageRefused
from tasks.lake import Commit, Lake

ID = "5eed" * 6
CHECK = {"table": "labels", "says": "there is at least one row", "examples": [], "checked": 0, "unexpected": 0}


def session(folder: Path, status: str | None, passed: bool = True, **settings: Any) -> Session:
    lake = Lake(folder)
    if status is not None:
        row = {
            **{"snapshot_id": ID, "table_versions_json": "{}", "counts_json": "{}", "checks_passed": passed},
            **{
                "checks_json": json.dumps([{**CHECK, "passed": passed}]),
                "report": f"reports/{ID}/index.html",
                "status": status,
            },
            **{"stage": "review", "item_id": ID, "made_from": "m", "run_id": "r"},
            **({"reviewer": "Ada", "why": "blurred"} if status == "rejected" else {}),
        }
        lake.upsert("snapshots", [row], Commit("test", 1))
    return Session(Config.model_validate(settings), lake)


def test_an_approved_snapshot_lets_the_run_go_on(tmp_path: Path) -> None:
    assert snapshot_approved(session(tmp_path, "approved")) is None


@pytest.mark.parametrize(
    ("status", "name", "message"),
    [
        ("rejected", "Rejected", f"snapshot {ID} passes all 1 checks; it is rejected by Ada: blurred"),
        ("pending", "WaitingForReview", f"`geofix approve {ID}` and run again"),
    ],
)
def test_another_one_ends_a_run_from_the_terminal_with_a_state_that_says_so(
    tmp_path: Path, status: str, name: str, message: str
) -> None:
    state = snapshot_approved(session(tmp_path, status))
    assert state is not None and (state.type.value, state.name) == ("COMPLETED", name)
    assert message in (state.message or "")


@pytest.mark.parametrize("passed", [True, False])
def test_a_rule_approves_what_passes_every_check_and_the_verdict_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passed: bool
) -> None:
    published: list[str] = []
    monkeypatch.setattr(decision, "publish_verdict", lambda verdict, report: published.append(verdict))
    here = session(tmp_path, "pending", passed=passed, review={"auto_approve": True})
    said: list[str] = []
    shown = Display()
    monkeypatch.setattr(shown, "say", said.append)
    token = display.set(shown)
    try:
        conclude_review(here)
        state = snapshot_approved(here)
    finally:
        display.reset(token)
    assert [text for text in said if text.startswith("snapshot")] == published and len(published) == 1
    if passed:
        assert state is None and "it is approved by rule: auto_approve" in published[0]
    else:
        assert f"{ID} fails 1 of 1 checks: labels: there is at least one row; it is pending" in published[0]
        assert state is not None and state.name == "WaitingForReview" and "approved" not in " ".join(said)
        assert said[1:] == [(state.message or "").removeprefix(f"{published[0]}; ")] and "--force" in said[1]


def test_without_a_snapshot_there_is_nothing_to_build_on(tmp_path: Path) -> None:
    with pytest.raises(StageRefused, match="look at the rejects of curate"):
        snapshot_approved(session(tmp_path, None))


class Deployed:
    """A deployment's flow run whose reviewer gives these decisions, one at each suspension."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *decisions: Decision) -> None:
        self.asked: list[str] = []
        self._decisions = iter(decisions)
        policy = SimpleNamespace(pause_keys=set())
        self.run = SimpleNamespace(id="f", deployment_id="d", parent_task_run_id=None, empirical_policy=policy)
        monkeypatch.setattr(decision, "_this_run", lambda: self.run)
        monkeypatch.setattr(decision, "suspend_flow_run", self.suspend)
        monkeypatch.setattr(decision, "publish_verdict", lambda verdict, report: None)

    def suspend(self, wait_for_input: type[Decision], timeout: int, key: str) -> Decision:
        assert timeout == 7 * 24 * 3600
        self.run.empirical_policy.pause_keys.add(key)
        self.asked.append(str(wait_for_input._description))
        return next(self._decisions)


def test_a_decision_that_cannot_be_taken_is_asked_again_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"why": "known gap", "reviewer": "Ada"}
    deployed = Deployed(
        monkeypatch, Decision(decision="approve", **said), Decision(decision="approve", overrule=True, **said)
    )  # fmt: skip
    here = session(tmp_path, "pending", passed=False)
    assert snapshot_approved(here) is None
    first, second = deployed.asked
    assert "fails 1 of 1 checks" in first and "was not taken" not in first
    assert "does not pass its checks" in second
    row = here.lake.read("snapshots").row(0, named=True)
    assert (row["status"], row["reviewer"], row["why"]) == ("approved", "Ada", "known gap")
    assert suspended_for(here.lake) == ID
    assert suspended_for(Lake(tmp_path / "other")) is None  # the key names the lake


def test_a_rejection_in_the_form_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Deployed(monkeypatch, Decision(decision="reject", why="blurred", reviewer="Ada"))
    here = session(tmp_path, "pending")
    state = snapshot_approved(here)
    assert state is not None and state.name == "Rejected"
    assert here.lake.read("snapshots").row(0, named=True)["status"] == "rejected"


@pytest.mark.parametrize("missing", [{"why": ""}, {"reviewer": ""}])
def test_the_form_wants_a_reason_and_a_name(missing: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="at least 1 character"):
        Decision(**{"decision": "approve", "why": "good", "reviewer": "Ada", **missing})  # type: ignore[arg-type]


def test_a_form_that_is_sent_without_a_decision_decides_nothing() -> None:
    with pytest.raises(ValueError, match="decision\\n  Field required"):
        Decision(why="looks good", reviewer="Ada")  # type: ignore[call-arg]
    schema = Decision.model_json_schema()
    assert schema["properties"]["decision"]["enum"] == ["approve", "reject"] and "decision" in schema["required"]
    assert "default" not in schema["properties"]["decision"]
