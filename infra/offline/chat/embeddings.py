"""The embeddings route: texts as hashed letter groups, so that names that are spelled alike lie near each other."""

from __future__ import annotations

import json
import math
import unicodedata
import zlib

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from infra.offline.chat.errors import ChatError, bad

NAME = "embedder"
WIDTH = 384
MOST_TEXTS, MOST_LETTERS = 2048, 8192


async def embed(request: Request) -> Response:
    """The vectors of `input`, a text or a list of texts."""
    try:
        parsed = json.loads(await request.body())
        if not isinstance(parsed, dict):
            raise bad("The body must be an object.")
        if parsed.get("model") != NAME:
            raise ChatError(404, f"The model {parsed.get('model')!r} does not exist", code="model_not_found")
        given = parsed.get("input")
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise bad("'input' must be a text or a list of texts, none of them empty.", "input")
        if len(texts) > MOST_TEXTS or any(len(text) > MOST_LETTERS for text in texts):
            raise bad(f"'input' holds more than {MOST_TEXTS} texts or one longer than {MOST_LETTERS}.", "input")
    except ChatError as error:
        return error.response()
    except (ValueError, RecursionError):
        return bad("We could not parse the JSON body of your request.").response()
    rows = [{"object": "embedding", "index": i, "embedding": vector(text)} for i, text in enumerate(texts)]
    tokens = sum(math.ceil(len(text) / 4) for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"object": "list", "data": rows, "model": NAME, "usage": usage})


def vector(text: str) -> list[float]:
    """The text's groups of two and three letters, hashed to a unit vector."""
    apart = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(letter for letter in apart if not unicodedata.combining(letter))
    padded = " " + " ".join(plain.split()) + " "
    counts = [0.0] * WIDTH
    for size in (2, 3):
        for start in range(max(1, len(padded) - size + 1)):
            counts[zlib.crc32(padded[start : start + size].encode("utf-8", "replace")) % WIDTH] += 1.0
    norm = math.sqrt(sum(count * count for count in counts)) or 1.0
    return [count / norm for count in counts]
