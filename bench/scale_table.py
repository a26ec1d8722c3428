"""What 20 thousand, 1 million and 100 million pictures take: the tables of docs/operate.md, from measured unit costs.

    python -m bench scale_table --lake LAKE [--gpus 8] [--page docs/operate.md]

Requests, bytes and tokens of each step come from the lake's tables `runs` and `calls` (the largest run of a step), and
are divided by its pictures. Limits and prices of services are those of the profile `production`. GPU seconds are what
the benchmarks named below measured on an H200; what was not measured is a published figure with its source. With
`--page` the tables between the page's two markers are replaced.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from schemas.config import Config
from schemas.load import load_config
from schemas.settings.models import CHAT
from tasks.lake import Lake

SIZES = (20_000, 1_000_000, 100_000_000)
BEGIN, END = "<!-- scale_table -->", "<!-- /scale_table -->"
SERVICES = ("mapillary", "stac", "geocoder", "search", "maps", "world_maps")

# Measured on one H200 with the 7B shape and 2 Mpx pictures (docs/train-gpu.md).
ANSWER_S = 2.07 / 64 / 128  # of a GPU for a token of a reply: `rollouts_gpu`, 64 completions of 128 tokens
SAMPLE_S = 0.682 / 2  # to train on a sample of 3,062 tokens: `train_gpu`
ROLLOUT_S = 6.5 / 16  # of GRPO with tools, its training included: `grpo_vllm`
GROUP = 8  # rollouts of a prompt
# Published.
USD_PER_GPU_HOUR = (
    4.0  # H200, middle of the $3.50 to $4.50 of specialised clouds: mercatus-ai.com/blog/cloud-gpu-pricing
)
USD_PER_SEARCH = 0.008  # a basic search is one credit: docs.tavily.com/documentation/api-credits
USD_PER_GB_MONTH = 0.023  # S3 Standard, first 50 TB, us-east-1: aws.amazon.com/s3/pricing


@dataclass(frozen=True)
class StepCost:
    """What one step takes for a picture of the lake, on average."""

    step: str
    requests: Mapping[str, float] = field(default_factory=dict)  # by "service kind"
    received: float = 0.0  # bytes
    tokens: float = 0.0  # of models that others serve
    usd: float = 0.0
    gpu_s: float = 0.0

    def limits(self, config: Config) -> Iterator[tuple[str, float]]:
        """Days for a picture under each limit of the services, by the limit's name."""
        for name, number in self.requests.items():
            service, _, kind = name.partition(" ")
            if service not in SERVICES:
                continue
            for allowance in getattr(config.services, service).allowances(kind):
                if allowance.per_minute:
                    yield f"{name}, {allowance.per_minute:,.0f} a minute", number / allowance.per_minute / 1440
                if allowance.per_day:
                    yield f"{name}, {allowance.per_day:,} a day", number / allowance.per_day
        chat = config.services.chat
        if chat.requests_per_minute and (asked := self.requests.get("chat", 0.0)):
            yield f"chat, {chat.requests_per_minute:,.0f} requests a minute", asked / chat.requests_per_minute / 1440
        if chat.tokens_per_minute and self.tokens:
            yield f"chat, {chat.tokens_per_minute:,.0f} tokens a minute", self.tokens / chat.tokens_per_minute / 1440

    def days(self, config: Config, gpus: int) -> tuple[float, str]:
        """Days for a picture, and what sets them: the tightest limit of a service, or the GPUs."""
        found = [(days, name) for name, days in self.limits(config)]
        return max([*found, (self.gpu_s / 86_400 / gpus, f"{gpus} GPUs")])


def unit_costs(lake: Lake, config: Config, own_models: bool = False) -> list[StepCost]:
    """What each step took for a picture of this lake; with all models on GPUs of one's own, or the policy alone."""
    pictures = lake.read("images", columns=["image_id"]).height
    if not pictures:
        raise SystemExit(f"geofix: lake '{lake.uri}' holds no pictures to measure")
    runs = lake.read("runs").filter(pl.col("items_in") > 0).sort("items_in", "started_at")
    largest = runs.unique("stage", keep="last").sort("started_at", "run_id")
    calls = lake.read("calls", columns=["run_id", "role", "prompt_tokens", "completion_tokens"])
    found = []
    for run in largest.iter_rows(named=True):
        sent: dict[str, tuple[int, int]] = json.loads(run["sent_json"] or "{}")
        requests, tokens, usd, gpu_s = Counter[str](), 0.0, 0.0, 0.0
        for role, prompt, completion, number in _spent(calls.filter(pl.col("run_id") == run["run_id"])):
            known = config.models.roles.get(role)
            if own_models or known is None or known.endpoint != CHAT:
                gpu_s += completion * ANSWER_S
                continue
            requests["chat"] += number
            tokens += prompt + completion
            price = config.services.chat.price_of(known.model or role)
            usd += price.of(prompt, completion) if price else 0.0
        for kind, (number, _) in sent.items():
            if kind.partition(" ")[0] in SERVICES:
                requests[kind] += number
        usd += requests["search"] * USD_PER_SEARCH
        found.append(
            StepCost(
                run["stage"],
                {kind: number / pictures for kind, number in requests.items() if number},
                sum(size for _, size in sent.values()) / pictures,
                tokens / pictures,
                usd / pictures,
                gpu_s / pictures,
            )
        )
    return [*(one for one in found if one.requests or one.gpu_s), *_training(lake, pictures)]


def _spent(calls: pl.DataFrame) -> Iterator[tuple[str, int, int, int]]:
    sums = calls.group_by("role").agg(pl.col("prompt_tokens", "completion_tokens").sum(), pl.len()).sort("role")
    yield from sums.iter_rows()


def _training(lake: Lake, pictures: int) -> Iterator[StepCost]:
    samples = lake.read("samples", columns=["training_stage"])["training_stage"].value_counts()
    for phase, number in sorted(samples.iter_rows()):
        seconds = GROUP * ROLLOUT_S if phase == "grpo" else SAMPLE_S
        yield StepCost(f"train.{phase}", gpu_s=number * seconds / pictures)


def unit_table(costs: Sequence[StepCost], config: Config, gpus: int) -> str:
    """What each step takes for a picture."""
    lines = [
        "| step, for a picture | requests | received | tokens of vendors' models | money | GPU | what limits it |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in costs:
        requests = ", ".join(f"{name} {number:.2g}" for name, number in one.requests.items()) or "0"
        lines.append(
            f"| {one.step} | {requests} | {_bytes(one.received)} | {one.tokens:,.0f} | ${one.usd:.4f} | "
            f"{one.gpu_s:.3f} s | {one.days(config, gpus)[1]} |"
        )
    return "\n".join(lines)


def size_table(costs: Sequence[StepCost], stored: float, config: Config, gpus: int) -> str:
    """What the sizes take: steps one after another, each as long as its tightest limit."""
    lines = [
        f"| pictures | requests | received | stored | GPU hours | money | days with {gpus} GPUs | the longest step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for size in SIZES:
        gpu_hours = size * sum(one.gpu_s for one in costs) / 3600
        usd = size * sum(one.usd for one in costs) + gpu_hours * USD_PER_GPU_HOUR
        days = {one.step: one.days(config, gpus) for one in costs}
        slowest = max(days, key=lambda step: days[step][0])
        month = size * stored / 1e9 * USD_PER_GB_MONTH
        lines.append(
            f"| {size:,} | {_number(size * sum(sum(one.requests.values()) for one in costs))} | "
            f"{_bytes(size * sum(one.received for one in costs))} | {_bytes(size * stored)} | {_number(gpu_hours)} | "
            f"${usd:,.0f}, and ${_number(month)} a month | {_number(size * sum(each for each, _ in days.values()))} | "
            f"{slowest}, {_number(size * days[slowest][0])} days: {days[slowest][1]} |"
        )
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench scale_table")
    parser.add_argument("--lake", required=True)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args(arguments)
    lake, config = Lake(given.lake, read_only=True), load_config(profile="production")
    images = lake.read("images", columns=["bytes"])
    vendors, own = (unit_costs(lake, config, own_models) for own_models in (False, True))
    stored = float(images["bytes"].sum()) / images.height
    text = "\n\n".join(
        [
            f"Of a lake with {images.height:,} pictures:",
            unit_table(vendors, config, given.gpus),
            "With vendors' models for judging and synthesis:",
            size_table(vendors, stored, config, given.gpus),
            "With all models on GPUs of one's own ([pools](cluster.md)):",
            size_table(own, stored, config, given.gpus),
        ]
    )
    print(text)
    if given.page:
        before, found, rest = given.page.read_text(encoding="utf-8").partition(BEGIN)
        _, ended, after = rest.partition(END)
        if not found or not ended:
            raise SystemExit(f"{given.page} lacks the lines {BEGIN} and {END}")
        given.page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
