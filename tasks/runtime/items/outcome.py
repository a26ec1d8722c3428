"""What comes of an item, and of a whole step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.messages import Usage
from tasks.services.meter import Tally

Row = dict[str, Any]
NO_USAGE = Usage()

# Rows of a rejected item carry this before their digest: only the rejects table says that the item is finished.
REJECTED = "rejected:"


@dataclass(frozen=True)
class Kept:
    """The item goes on: rows by table, own columns only."""

    rows: Mapping[str, list[Row]]
    usage: Usage = NO_USAGE
    gone: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # table -> key -> why its row ends, any stage's


@dataclass(frozen=True)
class Rejected:
    """The item is refused for good, with a snake_case reason and the evidence. Rows may be written for it too."""

    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    rows: Mapping[str, list[Row]] = field(default_factory=dict)
    usage: Usage = NO_USAGE


Outcome = Kept | Rejected


@dataclass(frozen=True)
class Tick:
    """How far a step is."""

    stage: str
    total: int  # items in the input
    skipped: int  # finished by earlier runs
    kept: int = 0
    rejected: int = 0
    failed: int = 0
    seconds: float = 0.0
    finished: bool = False
    sent: Tally = field(default_factory=Tally)  # requests to services so far
    usage: Usage = NO_USAGE  # of models, so far
    waits_for: str = ""  # before the first result
    waited_s: Mapping[str, float] = field(default_factory=dict)  # by service: sent nothing, its limit was reached

    @property
    def done(self) -> int:
        return self.kept + self.rejected + self.failed

    @property
    def todo(self) -> int:
        return self.total - self.skipped


@dataclass(frozen=True)
class StageResult:
    """What a step did: versions, counts, reasons, cost."""

    stage: str
    run_id: str
    status: str  # done, or done_with_failures
    input_versions: Mapping[str, int]
    output_versions: Mapping[str, int]
    total: int
    skipped: int
    items_in: int
    kept: int
    rejected: int
    failed: int
    rejects: Mapping[str, int]  # by reason, this run
    failures: Mapping[str, int]  # by kind, this run
    totals: Mapping[str, int]  # kept and rejected over all runs, and by table the live rows
    total_rejects: Mapping[str, int]  # by reason, over all runs
    usage: Usage
    seconds: float
    starting_s: float = 0.0  # of them, before the first worker was ready
    redone: int = 0  # of items_in: finished before, with other settings, code or input
    revived: int = 0  # of skipped: finished before with these settings, and taken up again
    paused_s: Mapping[str, float] = field(default_factory=dict)  # by service: sent nothing, its limit was reached

    @property
    def nothing_to_do(self) -> bool:
        return self.items_in == 0
