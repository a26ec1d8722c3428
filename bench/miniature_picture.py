"""The miniature in one picture: what each stage finds beside its controls, and GRPO's reward step by step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

STAGES = (
    ("base", "untrained", "base, at once"), ("SFT", "sft-{}", "at once"), ("cold start", "cold-{}", "agent"),
    ("GRPO", "grpo-{}", "agent"), ("GRPO random", "random-{}", "agent"), ("more lessons", "more-{}", "agent"),
)  # fmt: skip
CONTROLS = (
    ("other pictures", "controls-{}", "pictures of other places"),
    ("blank boards", "controls-{}", "boards without a word"),
    ("no tools", "controls-{}", "no tools"),
    ("wrong tools", "controls-{}", "tools that answer wrongly"),
)
WIDTH, HEIGHT, FLOOR, TOP = 1040, 640, 290, 40
STAGE_COLOUR, CONTROL_COLOUR, CEILING_COLOUR, RANDOM_COLOUR = "#15803d", "#6b7280", "#b45309", "#2563eb"
WINDOW = 15  # steps of GRPO that a point of its curve is the mean of


def draw(folder: Path, parts: dict[str, Any], seeds: Sequence[int], file: Path) -> None:
    """Write the picture of what there is."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        *bars(parts, seeds),
        *curves(folder, seeds),
        "</svg>",
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def bars(parts: dict[str, Any], seeds: Sequence[int]) -> Iterator[str]:
    """Acc@25 km with intervals, a bar for each seed."""
    high = 0.45

    def y(share: float) -> float:
        return FLOOR - (FLOOR - TOP) * share / high

    yield _text(
        56, 24, "Within 25 km, held-out places, likeliest replies, 95 % intervals; a bar for each seed", "start"
    )
    for tenth in range(5):
        yield _line(56, y(tenth / 10), WIDTH - 12, y(tenth / 10), "#ddd")
        yield _text(48, y(tenth / 10) + 4, f"{10 * tenth}%", "end")
    ceiling = parts.get("untrained", {}).get("rows", {}).get("ceiling")
    if ceiling:
        at = y(ceiling["acc_25km"][0])
        yield _line(56, at, WIDTH - 12, at, CEILING_COLOUR, 'stroke-dasharray="6 4"')
        said = f"a reader of every plate: {ceiling['acc_25km'][0]:.1%}"
        yield _text(WIDTH - 14, at - 6, said, "end", CEILING_COLOUR)
    shown = [(*one, STAGE_COLOUR) for one in STAGES] + [(*one, CONTROL_COLOUR) for one in CONTROLS]
    shown = [one for one in shown if any(one[1].format(seed) in parts for seed in seeds)]
    room = (WIDTH - 70) / len(shown)
    for place, (name, piece, row, colour) in enumerate(shown):
        middle = 60 + room * (place + 0.5)
        pieces = list(dict.fromkeys(piece.format(seed) for seed in seeds))
        found = [parts[one]["rows"][row]["acc_25km"] for one in pieces if one in parts]
        for number, (share, low, up) in enumerate(found):
            x = middle + 24 * (number - (len(found) - 1) / 2)
            yield (
                f'<rect x="{x - 10:.1f}" y="{y(share):.1f}" width="20" height="{max(0.8, FLOOR - y(share)):.1f}" '
                f'fill="{colour}"/>'
            )
            yield _line(x, y(low), x, y(up), "#111")
        yield _text(middle, FLOOR + 18, name, "middle", "#111" if colour == STAGE_COLOUR else colour)


def curves(folder: Path, seeds: Sequence[int]) -> Iterator[str]:
    """GRPO's own reward, a line for each seed and arm."""
    top, floor = 370, HEIGHT - 40
    arms = (("grpo", STAGE_COLOUR, "learnable pictures (Pass@8)"), ("random", RANDOM_COLOUR, "random pictures"))
    found = {(arm, seed): _steps(folder / f"{arm}-{seed}.curve.jsonl") for arm, _, _ in arms for seed in seeds}
    longest = max((len(one) for one in found.values()), default=0)
    yield _text(56, top - 16, f"Reward of GRPO's own rollouts (practice places), means of {WINDOW} steps", "start")
    for fifth in range(6):
        at = floor - (floor - top) * fifth / 5
        yield _line(56, at, WIDTH - 12, at, "#ddd")
        yield _text(48, at + 4, f"{fifth / 5:.1f}", "end")
    for number, (arm, colour, said) in enumerate(arms):
        if not any(found[arm, seed] for seed in seeds):
            continue
        yield _text(WIDTH - 14, top + 16 + (floor - top) * (0.3 if number == 0 else 0.52), said, "end", colour)
        for seed in seeds:
            rewards = found[arm, seed]
            points = [mean(rewards[max(0, n - WINDOW + 1) : n + 1]) for n in range(len(rewards))]
            places = " ".join(
                f"{56 + (WIDTH - 68) * (n + 1) / longest:.1f},{floor - (floor - top) * value:.1f}"
                for n, value in enumerate(points)
                if n >= WINDOW - 1
            )
            yield f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
    for part in range(0, longest + 1, 50):
        yield _text(56 + (WIDTH - 68) * part / max(1, longest), floor + 18, str(part), "middle")
    yield _text(WIDTH / 2, floor + 34, "steps of 128 rollouts", "middle")


def _steps(file: Path) -> list[float]:
    if not file.is_file():
        return []
    return [json.loads(line)["reward"] for line in file.read_text(encoding="utf-8").splitlines()]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {more}/>'


def _text(x: float, y: float, said: str, anchor: str, colour: str = "#444") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{said}</text>'
