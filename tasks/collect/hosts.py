"""Which image hosts work, as far as a worker has seen: tells the trouble of a host from that of a picture."""

from collections import Counter
from urllib.parse import urlsplit

from tasks.services import ServiceError

GONE = 410  # of a fresh address: the host no longer has the picture
# As these kinds the failure of a place or a check is kept, where its host refused one of its pictures.
REFUSALS = frozenset({"expired", "blocked"})


class Hosts:
    """How many usable pictures each host has given, or confirmed to be as they were."""

    def __init__(self) -> None:
        self._answers: Counter[str] = Counter()

    def answered(self, url: str) -> None:
        self._answers[_host(url)] += 1

    def has_answered(self, url: str) -> bool:
        return self._answers[_host(url)] > 0

    def counts(self) -> dict[str, int]:
        """What `Refused` compares with."""
        return dict(self._answers)


class AtHost(ServiceError):
    """An error of an image host, and the address that was queried."""

    def __init__(self, error: ServiceError, url: str) -> None:
        super().__init__(error.service, error.kind, error.message, status=error.status, retryable=error.retryable)
        self.attempts, self.url = error.attempts, url


class Refused(AtHost):
    """A host gives one picture under no address: 401, 403, or another way to go. The host's trouble, or the picture's.

    Which of the two shows by what it answers to others from `since` on.
    """

    def __init__(self, error: ServiceError, url: str, since: dict[str, int]) -> None:
        super().__init__(error, url)
        self._host, self._since = _host(url), since

    def is_its_own(self, hosts: Hosts) -> bool:
        """Whether its host has answered others meanwhile."""
        return hosts.counts().get(self._host, 0) > self._since.get(self._host, 0)


def is_refusal(error: ServiceError) -> bool:
    """Whether an answer leaves open whose trouble it is; a picture that is gone for good leaves nothing open."""
    leads_elsewhere = error.kind == "blocked" and error.status is not None
    return leads_elsewhere or (error.kind == "expired" and error.status != GONE)


def _host(url: str) -> str:
    return urlsplit(url).netloc
