"""The parts of the pipeline, in order."""

# To add a part: its package under tasks/ with STAGES, its settings under the same name in schemas/config.py, and its
# name here.
PARTS = ("plan", "collect", "curate", "review", "synthesize", "difficulty", "train", "evaluate")


def parts_between(first: str, last: str) -> list[str]:
    """The parts from one to another, both included."""
    return list(PARTS[PARTS.index(first) : PARTS.index(last) + 1])
