"""How light the offline world is: `python -m bench offline_world` starts one and prints the figures.

Times are given as seconds on the clock and as seconds of CPU: on a busy machine only the second says anything.
"""

import argparse
import base64
import http.client
import json
import os
import socket
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.offline.services.mapillary import TOKEN
from infra.offline.world import DEFAULT_SEED, DEFAULT_SIZE, World

REQUESTS = 1500
START_S, MEMORY_MB, RATE = 5.0, 1024.0, 300.0
_FIELDS = "id,sequence,captured_at,geometry,computed_geometry,compass_angle,is_pano,creator,width,height,thumb_1024_url"


@dataclass(frozen=True)
class Figures:
    """What was measured of one server."""

    start_wall_s: float
    start_cpu_s: float
    ready_cpu_s: float  # until the indices for searching are built too
    rss_started_mb: float
    rss_most_mb: float  # after searching, painting, reading a picture and drawing maps
    ocr_s: float
    requests: int
    rate_wall: float
    rate_cpu: float

    def rows(self) -> list[tuple[str, str, str]]:
        """(figure, value, bound) for people."""
        return [
            ("first answer", f"{self.start_wall_s:.1f} s ({self.start_cpu_s:.1f} s of CPU)", f"< {START_S:.0f} s"),
            ("search indices built", f"{self.ready_cpu_s:.1f} s of CPU, in the background", ""),
            ("memory when started", f"{self.rss_started_mb:.0f} MB", ""),
            ("memory at most, OCR and maps included", f"{self.rss_most_mb:.0f} MB", f"< {MEMORY_MB:.0f} MB"),
            ("the observer looks at one picture", f"{self.ocr_s:.1f} s", ""),
            (
                f"metadata requests ({self.requests:,})",
                f"{self.rate_wall:.0f}/s here, {self.rate_cpu:.0f}/s of one core's time",
                f">= {RATE:.0f}/s",
            ),
        ]


class Server:
    """An offline world in a process of its own; ends with this one."""

    def __init__(self, size: int, seed: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        arguments = ["--port", str(self.port), "--size", str(size), "--seed", str(seed), "--lifeline"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "infra.offline", *arguments], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )

    def connect(self) -> http.client.HTTPConnection:
        """A connection that stays open from request to request."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=180)

    def cpu_s(self) -> float:
        """Seconds of CPU the server has used, its own and the kernel's."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self, name: str) -> float:
        """VmRSS (now) or VmHWM (at most) in MB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))

    def close(self) -> None:
        """Ends the server."""
        self.process.terminate()
        self.process.wait(timeout=20)


def ask(link: http.client.HTTPConnection, path: str, body: Any = None, **headers: str) -> bytes:
    """The body of an answer; RuntimeError unless it is a 200."""
    data = None if body is None else json.dumps(body)
    link.request("GET" if data is None else "POST", path, data, headers)
    response = link.getresponse()
    found = response.read()
    if response.status != 200:
        raise RuntimeError(f"{path.split('?')[0]}: status {response.status}")
    return found


def metadata_paths(world: World, count: int) -> list[str]:
    """Requests as a collector sends them: boxes, then the images found in them."""
    token, paths = urllib.parse.quote(TOKEN), []
    for index in range(count):
        images = world.images(index % world.size)
        if index % 5 == 0:
            lat, lon = images[0].lat, images[0].lon
            box = f"{lon - 0.02:.6f},{lat - 0.02:.6f},{lon + 0.02:.6f},{lat + 0.02:.6f}"
            paths.append(f"/mapillary/images?bbox={box}&fields={_FIELDS}&access_token={token}&is_pano=true")
        else:
            paths.append(f"/mapillary/{images[index % len(images)].image_id}?fields={_FIELDS}&access_token={token}")
    return paths


def measure(
    size: int = DEFAULT_SIZE, seed: int = DEFAULT_SEED, requests: int = REQUESTS, only_metadata: bool = False
) -> Figures:
    """Starts a server, puts it to work and returns the figures; `only_metadata` leaves searching, OCR and maps out."""
    # Asked for before: the boxes and ids come from a world of our own, which takes as long to make as the server's.
    paths = metadata_paths(World(seed, size), requests)
    began = time.perf_counter()
    server = Server(size, seed)
    try:
        link = server.connect()
        while True:
            try:
                ask(link, "/health")
                break
            except OSError:
                if server.process.poll() is not None or time.perf_counter() - began > 120:
                    raise RuntimeError("the offline world did not start") from None
                link.close()
                time.sleep(0.02)
        start_wall, start_cpu, started_mb = time.perf_counter() - began, server.cpu_s(), server.memory_mb("VmRSS")
        ready_cpu, ocr_s = start_cpu, 0.0
        if not only_metadata:
            ask(link, "/nominatim/search?q=Lyon")  # waits for the index of names, and the next for that of signs
            ask(link, "/tavily/search", {"query": "bakery Lyon"}, Authorization="Bearer tvly-offline-world")
            ready_cpu = server.cpu_s()
        rate_wall, rate_cpu = _rate(server, link, paths)
        if not only_metadata:
            ocr_s = _look(link, paths[1])
            for style in ("roadmap", "satellite"):
                ask(link, f"/maps/v3/staticmap?location=2.352,48.857&zoom=14&maptype={style}&key=offline-world-maps")
        return Figures(
            start_wall,
            start_cpu,
            ready_cpu,
            started_mb,
            server.memory_mb("VmHWM"),
            ocr_s,
            requests,
            rate_wall,
            rate_cpu,
        )
    finally:
        server.close()


def _rate(server: Server, link: http.client.HTTPConnection, paths: list[str]) -> tuple[float, float]:
    cpu, began = server.cpu_s(), time.perf_counter()
    for path in paths:
        ask(link, path)
    return len(paths) / (time.perf_counter() - began), len(paths) / max(0.01, server.cpu_s() - cpu)


def _look(link: http.client.HTTPConnection, image_path: str) -> float:
    """Seconds the observer takes for a picture of the world at 2048 pixels."""
    url = json.loads(ask(link, image_path.replace(_FIELDS, "thumb_2048_url")))["thumb_2048_url"]
    picture = ask(link, url.partition("//")[2].partition("/")[1] + url.partition("//")[2].partition("/")[2])
    part = {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{base64.b64encode(picture).decode()}"}}
    content = [{"type": "text", "text": "Describe what you see, coarse to fine."}, part]
    body = {"model": "observer", "messages": [{"role": "user", "content": content}]}
    began = time.perf_counter()
    ask(link, "/openai/v1/chat/completions", body, Authorization="Bearer sk-offline-world")
    return time.perf_counter() - began


def main(arguments: Sequence[str] = ()) -> int:
    """Prints the figures; 1 when one is out of its bound, as far as CPU seconds can say."""
    parser = argparse.ArgumentParser(prog="python -m bench offline_world")
    parser.add_argument("--size", type=int, default=DEFAULT_SIZE)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    options = parser.parse_args(list(arguments))
    found = measure(options.size, options.seed, options.requests)
    for name, value, bound in found.rows():
        print(f"{name:40} {value:44} {bound}")
    return int(found.start_cpu_s > START_S or found.rss_most_mb > MEMORY_MB or found.rate_cpu < RATE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
