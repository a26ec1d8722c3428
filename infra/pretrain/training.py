"""One run of pretraining: processes that paint, a loop that learns, figures at the end."""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from infra.offline.place import Place
from infra.offline.world import World
from infra.pretrain.boards import LEVELS, letters_of, readable
from infra.pretrain.feed import Boards, Pool, Replay, paint_forever, write_shard
from infra.pretrain.measure import attributes, boxes, quotes_right, read_signs, reading_report
from infra.pretrain.model import Learner
from infra.pretrain.pictures import BOX, clear_images, is_held_out, original
from infra.pretrain.tokens import Quotes, Sequenced, Tokens, stacked, text_batch

PASS_EXACT = (0.75, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 2.0)  # share read exactly at which the next lesson begins
WEIGHTS = "model.safetensors"  # where `start` holds them, training goes on from them
LAST_LEVEL_AT = 0.55  # share of the time by which the last lesson begins at the latest


@dataclass(frozen=True)
class Plan:
    """How much of what is done."""

    seconds: float
    steps: int | None = None  # stop after n steps, for a trial
    seed: int = 0
    world_seed: int = 7
    world_size: int = 200_000
    places: int = 12_000  # whose signs are practised
    held_out: int = 600  # pictures that are measured with
    batch: int = 384
    view_batch: int = 96
    board_processes: int = 9
    paint_processes: int = 6
    backgrounds: int = 24
    shard: int = 24
    replay: int = 1200  # batches of boards that are kept, to be seen again
    first_level: int = 0
    quote_processes: int = 0  # that write lessons in quoting
    quote_share: float = 0.4  # of the steps from the last but one lesson on
    quote_batch: int = 256
    decay_from: float = 0.7  # share of the time after which the learning rate falls
    rate: float = 1e-3


def say(started: float, *words: object) -> None:
    print(f"[{time.monotonic() - started:5.0f}]", *words, file=sys.stderr, flush=True)


def choose_places(world: World, plan: Plan) -> tuple[list[Place], list[int]]:
    """(places to practise, indices of held-out places): by cells, in the order of a seeded draw."""
    order = list(range(world.size))
    random.Random(plan.seed).shuffle(order)
    train: list[Place] = []
    held: list[int] = []
    for index in order:
        if len(train) >= plan.places and len(held) >= plan.held_out:
            break
        place = world.sign_texts(index)
        if is_held_out(place):
            if len(held) < plan.held_out and clear_images(world, index):
                held.append(index)
        elif len(train) < plan.places:
            train.append(world.place(index))
    return train, held


_WORLD: World | None = None  # for forked processes: a world is too large to be sent


def _held_part(task: tuple[list[tuple[int, str]], int, str]) -> None:
    assert _WORLD is not None
    chosen, seed, stem = task
    write_shard(_WORLD, chosen, random.Random(seed), Path(stem), pad=False)


def paint_held_out(world: World, held: Sequence[int], plan: Plan, folder: Path) -> None:
    """Paint one picture of every held-out place, by all processes at once."""
    folder.mkdir(parents=True, exist_ok=True)
    global _WORLD
    _WORLD = world
    rng = random.Random(plan.seed + 1)
    chosen = [(index, rng.choice(clear_images(world, index)).image_id) for index in held]
    parts = [(chosen[k : k + 12], k, str(folder / f"held-{k:05d}")) for k in range(0, len(chosen), 12)]
    workers = max(1, plan.board_processes + plan.paint_processes)
    if workers == 1 or len(parts) == 1:
        for part in parts:
            _held_part(part)
        return
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        pool.map(_held_part, parts, chunksize=1)


def run(start: Path, plan: Plan, scratch: Path, output: Path) -> Learner:
    """Train from the configuration and tokenizer in `start`; figures go to `output`."""
    began = time.monotonic()
    output.mkdir(parents=True, exist_ok=True)
    held_folder, train_folder = scratch / "held", scratch / "train"
    for folder in (held_folder, train_folder):
        folder.mkdir(parents=True, exist_ok=True)
    world = World(plan.world_seed, plan.world_size)
    tokens = Tokens(start / "tokenizer.json")
    places, held = choose_places(world, plan)
    letters = letters_of(places)
    say(began, f"{len(places)} places to practise, {len(held)} held out, {len(letters)} letters")
    paint_held_out(world, held, plan, held_folder)
    rng = random.Random(plan.seed + 2)
    backgrounds = [
        original(world, clear_images(world, place.index)[0])[0]
        for place in rng.sample(places, min(len(places), plan.backgrounds * 2))
        if clear_images(world, place.index)
    ][: plan.backgrounds]
    say(began, "held-out pictures painted")
    # Processes are forked before the accelerator is touched: a forked child cannot use it.
    level = torch.full((1,), plan.first_level, dtype=torch.int64).share_memory_()
    context = multiprocessing.get_context("fork")
    indices = [place.index for place in places]
    painters = [
        context.Process(
            target=paint_forever, args=(world, indices, plan.seed, train_folder, f"p{k}", plan.shard), daemon=True
        )
        for k in range(plan.paint_processes)
    ]
    for painter in painters:
        painter.start()
    stream = Boards(places, letters, tokens, backgrounds, level, plan.batch, plan.seed)
    loader: Any = torch.utils.data.DataLoader(
        stream,
        batch_size=None,
        num_workers=plan.board_processes,
        prefetch_factor=4 if plan.board_processes else None,
        pin_memory=torch.cuda.is_available(),
        multiprocessing_context=context if plan.board_processes else None,
    )
    source = iter(loader)
    quote_level = torch.zeros(1, dtype=torch.int64).share_memory_()
    quotes: Any = torch.utils.data.DataLoader(
        Quotes(tokens, quote_level, plan.quote_batch, plan.seed),
        batch_size=None,
        num_workers=plan.quote_processes,
        prefetch_factor=4 if plan.quote_processes else None,
        multiprocessing_context=context if plan.quote_processes else None,
    )
    quote_source = iter(quotes)
    learner = Learner(start, len(letters), plan.seed, weights=(start / WEIGHTS).is_file(), rate=plan.rate)
    say(began, f"{sum(master.numel() for master in learner.masters) / 1e6:.2f} M parameters on {learner.device}")
    held_pool, pool = Pool(held_folder, learner.device), Pool(train_folder, learner.device)
    held_pool.refresh(1e9)
    log = _loop(
        learner, Replay(source, learner.device, plan.replay, plan.seed), pool, held_pool, tokens, level, plan, began,
        Quoting(quote_source, quote_level, plan.quote_share),
    )  # fmt: skip
    report = {"plan": asdict(plan), "letters": letters, "parameters": sum(m.numel() for m in learner.masters),
              "log": log, **figures(learner, held_pool, tokens), "painted": len(pool.facts.get("view_9x13", []))
              + len(pool.facts.get("view_8x16", [])), "seconds": round(time.monotonic() - began, 1)}  # fmt: skip
    say(began, json.dumps({name: report[name] for name in ("signs", "signs_shuffled", "attributes", "boxes")}))
    (output / "figures.json").write_text(json.dumps(report), encoding="utf-8")
    for painter in painters:
        painter.terminate()
    return learner


def figures(learner: Learner, held: Pool, tokens: Tokens) -> dict[str, Any]:
    """Everything that is measured, each beside its control with shuffled pictures."""
    rows = read_signs(learner, held, tokens)
    return {
        "signs": reading_report(rows),
        "signs_shuffled": reading_report(read_signs(learner, held, tokens, shuffle=True)),
        "attributes": attributes(learner, held, tokens),
        "attributes_shuffled": attributes(learner, held, tokens, shuffle=True),
        "boxes": boxes(learner, held, tokens),
        "boxes_shuffled": boxes(learner, held, tokens, shuffle=True),
        "quotes": quotes_right(learner, tokens),
        "misread": [row["text"] for row in rows if not row["exact"] and row["latin"] and row["letters_px"] >= 12][:40],
    }


def _loop(
    learner: Learner,
    source: Replay,
    pool: Pool,
    held: Pool,
    tokens: Tokens,
    level: torch.Tensor,
    plan: Plan,
    began: float,
    quoting: Quoting,
) -> list[dict[str, float]]:
    rng = random.Random(plan.seed + 3)
    log: list[dict[str, float]] = []
    started, step, seen, average, number = time.monotonic(), 0, 0, 0.0, plan.first_level
    ready_views: list[str] = []
    ready_zooms: list[str] = []
    while True:
        spent = (time.monotonic() - started) / plan.seconds
        if spent >= 1 or step == plan.steps:
            return log
        falling = min(1.0, max(0.03, (1 - spent) / (1 - plan.decay_from)))
        rate = plan.rate * min(1.0, (step + 1) / 300) * falling
        step += 1
        if number >= len(LEVELS) - 2 and rng.random() < quoting.share:
            quoting.step(learner, rate)
            continue
        if step % 100 == 1:
            pool.refresh(0.5)
            ready_views, ready_zooms = pool.keys("view", 200), pool.keys("zoom", plan.batch)
        if step % 3 == 0 and ready_views:
            view_step(learner, pool, tokens, rng.choice(ready_views), plan.view_batch, rate, rng)
            continue
        if number >= len(LEVELS) - 2 and ready_zooms and rng.random() < 0.3:
            zoom_step(learner, pool, tokens, rng.choice(ready_zooms), plan.batch, rate, rng)
            continue
        batch, is_new = source.next(number)
        packed = learner.packed(batch.pixels, batch.grid, batch.ids, batch.labels, 0.12)
        logits = learner.logits(packed)
        loss = F.cross_entropy(logits, packed.targets)
        where = learner.letter_loss(len(batch.ids), batch.grid, batch.letters)
        learner.update(loss + (0.3 if spent < 0.7 else 0.08) * where, rate)
        seen += len(batch.ids)
        if step % 20 == 1 and is_new and batch.level == number:
            exact = float(learner.exact(logits.detach(), batch.labels).float().mean())
            average = 0.5 * average + 0.5 * exact
            late = number < len(LEVELS) - 1 and spent > LAST_LEVEL_AT * (number + 1) / (len(LEVELS) - 1)
            if average > PASS_EXACT[number] or late:
                number, average = number + 1, 0.0
                level[0] = number
                say(began, f"level {LEVELS[number]} at step {step}, {seen} boards")
        if not log or step >= log[-1]["step"] + 400:
            exact = reading_report(read_signs(learner, held, tokens))["latin_exact"]
            log.append({"seconds": round(time.monotonic() - started, 1), "step": step, "boards": seen,
                        "level": LEVELS[number], "loss": round(float(loss.detach()), 4),
                        "letters": round(float(where.detach()), 4), "quotes": quoting.level + quoting.right,
                        "held_exact": exact})  # fmt: skip
            say(began, json.dumps(log[-1]), f"batches new {source.new}, again {source.again}, zooms {len(ready_zooms)}")


class Quoting:
    """Steps of quoting: random letters said again, then records; the level rises when the letters are mostly right."""

    PASS = 0.9

    def __init__(self, source: Iterator[tuple[int, torch.Tensor, torch.Tensor]], level: torch.Tensor, share: float):
        self._source, self._level, self.share = source, level, share
        self.right, self._steps = 0.0, 0

    @property
    def level(self) -> int:
        return int(self._level[0])

    def step(self, learner: Learner, rate: float) -> None:
        level, ids, labels = next(self._source)
        batch = text_batch(ids, labels, learner.device)
        logits = learner.logits(batch)
        learner.update(F.cross_entropy(logits, batch.targets), rate)
        self._steps += 1
        if self._steps % 10 == 0:
            right = float((logits.detach().argmax(-1) == batch.targets).float().mean())
            self.right = round(0.8 * self.right + 0.2 * right, 4)
            if level == self.level == 0 and self.right > self.PASS:
                self._level[0], self.right = 1, 0.0


def view_step(
    learner: Learner, pool: Pool, tokens: Tokens, key: str, count: int, rate: float, rng: random.Random
) -> None:
    """One step of questions about painted views, all of them in any order about each."""
    rows, columns = pool.grid(key)

    def interview(fact: dict[str, Any]) -> Sequenced | None:
        exchanges = [*fact["answers"].items(), *([(BOX, fact["box"])] if fact["box"] else [])]
        rng.shuffle(exchanges)
        answers = [(question, tokens.encode(text)) for question, text in exchanges]
        return tokens.sequence(rows * columns, answers, tokens.length(rows * columns) + 96)

    _drawn_step(learner, pool, key, interview, count, rate, rng, 0.04)


def zoom_step(
    learner: Learner, pool: Pool, tokens: Tokens, key: str, count: int, rate: float, rng: random.Random
) -> None:
    """One step of reading signs cut from painted pictures."""
    rows, columns = pool.grid(key)

    def read(fact: dict[str, Any]) -> Sequenced | None:
        return tokens.reading(rows * columns, fact["line"], fact["text"]) if readable(fact["text"]) else None

    _drawn_step(learner, pool, key, read, count, rate, rng, 0.08)


def _drawn_step(
    learner: Learner, pool: Pool, key: str, ask: Callable[[dict[str, Any]], Sequenced | None], count: int, rate: float,
    rng: random.Random, noise: float,
) -> None:  # fmt: skip
    """One step on n pictures of a group, drawn at random; `ask` makes the exchange, or None to draw another one."""
    chosen: list[int] = []
    made: list[Sequenced] = []
    while len(chosen) < count:
        number = rng.randrange(len(pool.facts[key]))
        exchange = ask(pool.facts[key][number])
        if exchange is not None:
            chosen.append(number)
            made.append(exchange)
    batch = learner.packed(pool.pixels[key][chosen], pool.grid(key), *stacked(made), noise)
    learner.update(F.cross_entropy(learner.logits(batch), batch.targets), rate)
