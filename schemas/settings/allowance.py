"""How often one kind of request may be made."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Allowance:
    """A budget of requests, and the settings it comes from, for the message that it is used up."""

    name: str = ""  # tells budgets of one service apart
    per_minute: float | None = None
    per_day: int | None = None
    day_setting: str = "requests_per_day"

    @property
    def is_open(self) -> bool:
        """Whether there is nothing to keep to."""
        return self.per_minute is None and self.per_day is None
