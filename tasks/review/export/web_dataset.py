"""Tar shards as the `webdataset` library streams them: a picture and a JSON of the same name for each sample."""

import io
import json
import tarfile
from pathlib import Path

from tasks.lake import Lake
from tasks.review.export.rows import Published, file_name, pictures

SHARD_BYTES = 400_000_000


def write(published: Published, lake: Lake, folder: Path) -> None:
    """`SPLIT-000000.tar` and so on. The same snapshot gives the same bytes."""
    for split in published.splits:
        number, size, tar = 0, 0, None
        for row, data in pictures(lake, published.split(split)):
            if tar is None or size > SHARD_BYTES:
                if tar is not None:
                    tar.close()
                tar = tarfile.open(folder / f"{split}-{number:06d}.tar", "w")  # noqa: SIM115 - closed by the next
                number, size = number + 1, 0
            facts = {name: value for name, value in row.items() if value is not None}
            text = json.dumps(facts, default=str, ensure_ascii=False, sort_keys=True).encode()
            _add(tar, file_name(row), data)
            _add(tar, f"{row['image_id']}.json", text)
            size += len(data) + len(text)
        if tar is not None:
            tar.close()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o644
    tar.addfile(member, io.BytesIO(data))
