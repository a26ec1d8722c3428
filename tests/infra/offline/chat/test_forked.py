"""A process that has read pictures in threads can still start others."""

import subprocess
import sys

import pytest

_SCRIPT = """
import subprocess, threading
from PIL import Image, ImageDraw
from infra.offline.chat.sight import read_text
picture = Image.new("RGB", (640, 320), "white")
ImageDraw.Draw(picture).rectangle((100, 100, 400, 160), fill="black")
has_read, may_end = threading.Event(), threading.Event()
def read():
    read_text(picture)
    has_read.set()
    may_end.wait()
threading.Thread(target=read, daemon=True).start()
has_read.wait()
subprocess.run(["true"], preexec_fn=lambda: None, check=True)  # as Ray starts its servers
"""


@pytest.mark.whole
def test_a_program_is_started_beside_a_thread_that_reads() -> None:
    subprocess.run([sys.executable, "-c", _SCRIPT], check=True, timeout=120)
