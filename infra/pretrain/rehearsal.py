"""What the packaged base was taught, as a file for `train.rehearsal`: plates to read into a call, results to quote.

Without it SFT and a few hundred trajectories would have the small model forget letters it has not met since.
"""

import io
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from infra.offline.render import paint
from infra.offline.world import World
from infra.pretrain.boards import LEVELS, crop_board, lesson, letters_of, overhead_board, pieces_of, readable
from infra.pretrain.pictures import READ
from infra.pretrain.tokens import record_texts

PLACES, BACKGROUNDS = 400, 6
READ_BOTH = "Read both lines of the sign."
_PART = pa.struct([("type", pa.string()), ("text", pa.string())])
_SCHEMA = pa.schema([
    ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.list_(_PART))]))),
    ("images", pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))),
])  # fmt: skip


def write_rehearsal(file: Path, count: int, seed: int) -> int:
    """Write `count` conversations from a world of this seed: no place of another world is in it.

    Half quote results; of the others half read a line of any board, half both lines of the board over a road.
    """
    rng = random.Random(seed)
    world = World(seed, PLACES)
    places = [world.place(number) for number in range(PLACES)]
    painted = [paint(world, world.first_image(number)).resize((1024, 512)) for number in range(BACKGROUNDS)]
    letters, background = letters_of(places), pieces_of(painted, rng)
    rows: list[dict[str, object]] = []
    while len(rows) < count:
        if len(rows) % 2:
            told, answer = record_texts(rng)
            rows.append(_row(told, answer, None))
            continue
        board, line, size = lesson(len(LEVELS) - 1, places, letters, rng)
        ask = READ[line]
        if len(rows) % 4:
            board, line, ask = overhead_board(rng.choice(places)), 0, READ_BOTH
            if not all(map(readable, board.lines)):
                continue
        crop = crop_board(board, line, size, background, rng)
        text = " ".join((", ".join(board.lines) if ask == READ_BOTH else crop.text).split())
        if json.dumps(text, ensure_ascii=False)[1:-1] != text:
            continue  # with a quote or a backslash
        call = json.dumps({"name": "maps_geocode", "arguments": {"address": text}}, ensure_ascii=False)
        rows.append(_row(ask, f"<tool_call>\n{call}\n</tool_call>", Image.fromarray(crop.pixels)))
    partial = file.with_name(file.name + ".partial")
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), partial)
    partial.rename(file)
    return len(rows)


def _row(question: str, answer: str, picture: Image.Image | None) -> dict[str, object]:
    shown, images = [], []
    if picture is not None:
        written = io.BytesIO()
        picture.save(written, "JPEG", quality=95)
        shown, images = [{"type": "image", "text": ""}], [{"bytes": written.getvalue(), "path": None}]
    user = {"role": "user", "content": [*shown, {"type": "text", "text": question}]}
    return {"messages": [user, {"role": "assistant", "content": [{"type": "text", "text": answer}]}], "images": images}
