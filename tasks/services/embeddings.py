"""Vectors of texts, over the OpenAI embeddings protocol."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.services.http import Connection, Http


class Embeddings:
    """One vector a text, in the order asked."""

    def __init__(self, connection: Connection, **http_options: Any) -> None:
        headers = {"Authorization": f"Bearer {connection.key.get_secret_value()}"} if connection.key else {}
        self._http = Http(connection, headers=headers, **http_options)

    async def embed(self, model: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """The vectors, one row a text."""
        # An empty text is refused by the protocol; a space has a vector, and no level compares it.
        body = {"model": model, "input": [text or " " for text in texts], "encoding_format": "float"}
        value, answer = await self._http.request_json("POST", "/embeddings", json_body=body)
        rows = value.get("data") if isinstance(value, dict) else None
        try:
            ordered = sorted(rows or [], key=lambda row: int(row["index"]))
            vectors = np.array([row["embedding"] for row in ordered], dtype=np.float64)
        except (KeyError, TypeError, ValueError):
            raise self._http.bad_response("no list of vectors under 'data'", answer) from None
        if vectors.ndim != 2 or len(vectors) != len(texts) or not np.isfinite(vectors).all():
            raise self._http.bad_response(f"not one vector for each of {len(texts)} texts", answer)
        return vectors

    async def close(self) -> None:
        await self._http.close()
