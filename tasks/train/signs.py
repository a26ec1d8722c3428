"""Signs that a training run goes wrong, named at the step at which they show."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from schemas.settings.train import TrainSettings

WINDOW = 10  # steps that a judgement looks back on
COLLAPSED = 0.25  # of the best window's reward
DEAD = 0.9  # share of groups without reward variance
LONGER = 2.0  # times the first window's completion length
SPIKE = 3.0  # times the window's median loss


class Signs:
    """Watches the figures of the steps; each sign is named once, until it has passed."""

    def __init__(self, settings: TrainSettings) -> None:
        self._limit = settings.grpo.max_completion_tokens
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._rewards: deque[float] = deque(maxlen=WINDOW)
        self._lengths: deque[float] = deque(maxlen=WINDOW)
        self._dead: deque[float] = deque(maxlen=WINDOW)
        self._best: float | None = None
        self._first_length: float | None = None
        self._shown: set[str] = set()

    def replay(self, history: Iterable[Mapping[str, float]]) -> None:
        """See the steps before a resume again, without a word."""
        for entry in history:
            for _ in self.seen(int(entry["step"]), entry):
                pass

    def seen(self, step: int, figures: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        """The signs that show with this step: name and one line."""
        warnings = dict(self._loss(figures)) | dict(self._groups(figures))
        for name, text in warnings.items():
            if name not in self._shown:
                yield name, text
        self._shown = set(warnings)

    def _loss(self, figures: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        loss = figures["loss"]
        if "reward" not in figures and len(self._losses) == WINDOW:
            usual = sorted(self._losses)[WINDOW // 2]
            if usual > 0 and loss > SPIKE * usual:
                yield "loss_spike", f"loss {loss:.3g} is {loss / usual:.1f} times that of the {WINDOW} steps before"
        self._losses.append(loss)

    def _groups(self, figures: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        if "reward" not in figures:
            return
        self._rewards.append(figures["reward"])
        self._lengths.append(figures["completion_tokens"])
        self._dead.append(figures["dead_groups"])
        if len(self._rewards) < WINDOW:
            return
        reward, length, dead = (sum(values) / WINDOW for values in (self._rewards, self._lengths, self._dead))
        self._best = reward if self._best is None else max(self._best, reward)
        self._first_length = length if self._first_length is None else self._first_length
        if self._best > 0.05 and reward < COLLAPSED * self._best:
            yield (
                "reward_collapse",
                f"reward fell to {reward:.3g}, {reward / self._best:.0%} of the best {WINDOW} steps: lower "
                "train.grpo.learning_rate or raise train.grpo.kl",
            )
        if length > LONGER * self._first_length and length > 0.5 * self._limit:
            yield (
                "length_explosion",
                f"completions grew to {length:.0f} tokens of at most {self._limit}, {length / self._first_length:.1f} "
                "times what they were: most are cut before they answer",
            )
        if dead >= DEAD:
            yield (
                "dead_groups",
                f"{dead:.0%} of the groups of the last {WINDOW} steps have equal rewards and teach nothing: raise "
                "train.grpo.group_size or temperature, or choose samples by reward variance (difficulty)",
            )
