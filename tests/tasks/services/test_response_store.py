"""What was answered is kept before it is used: a killed run asks again only what was in flight."""

import asyncio
import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import StageRefused
from schemas.messages import ToolCall
from schemas.settings.models import ModelsSettings
from schemas.settings.services import ServicesSettings
from tasks.agent.service_tools import open_toolbox
from tasks.agent.toolbox import CallResult, Toolbox
from tasks.recipes.spotagent import TOOLS as SPOTAGENT
from tasks.services import Chat, connect, response_store
from tasks.services.call_store import Begin, CallStore, process_owner
from tasks.services.calls import CallLog
from tasks.services.geocoder import Address, open_recalling
from tasks.services.rate_budget import PROCESS_BUDGET, ProcessRateBudget
from tasks.services.response_store import (
    Keep,
    Response,
    ResponseStore,
    SharedFile,
    ask_once,
    pack,
    unpack,
    writer_of,
)

HELLO = [{"role": "user", "content": "hi"}]
ANSWER = {
    "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1000, "completion_tokens": 100},
}
FOUND = {"results": [{"title": "Bakery", "url": "https://x.org", "content": "On the square.", "score": 1}]}
# What a worker does: ask, then be killed from outside while it waits.
ASK = """
import asyncio, sys
sys.path.insert(0, {here!r})
from test_response_store import ask_all
asyncio.run(ask_all({url!r}, {file!r}))
"""


def chat_of(url: str, file: str, key: str = "") -> Chat:
    endpoint = {"base_url": url, "timeout_s": 30, "total_timeout_s": 30} | ({"key_env": "KEY"} if key else {})
    roles = {"m": {"endpoint": "own", "price": {"prompt": 10, "completion": 100}, "max_tokens": 100}}
    settings = ModelsSettings.model_validate({"endpoints": {"own": endpoint}, "roles": roles})
    calls = CallLog(CallStore(file), "stage", "run", budget_usd=1.0)
    return Chat(connect(ServicesSettings(), {"KEY": key}, models=settings).sharing(PROCESS_BUDGET, calls).chat)


def tools_of(url: str, file: str, **search: Any) -> Toolbox:
    """The tools as a worker of a stage has them, the web search at this address."""
    endpoint = {"base_url": url, "timeout_s": 30, "total_timeout_s": 30, "max_attempts": 2, "backoff_s": 0.01}
    services = ServicesSettings.model_validate({"search": {**endpoint, **search}})
    calls = CallLog(CallStore(file), "stage", "run")
    return open_toolbox(connect(services, {}).sharing(ProcessRateBudget(), calls), Path(file).parent)


async def search(tools: Toolbox, query: str = "bakery") -> CallResult:
    return await tools.call(ToolCall("c", "search_web", f'{{"query": "{query}"}}'), None, SPOTAGENT)


async def ask_all(url: str, file: str) -> list[str]:
    """A question to a model and one of a tool, both answered, and then one more of each."""
    chat, tools = chat_of(url, file), tools_of(url, file)
    texts = [(await chat.complete("m", HELLO, seed=1)).text, (await search(tools)).text]
    more = await asyncio.gather(chat.complete("m", HELLO, seed=2), search(tools, "in flight"))
    return [*texts, *(one.text for one in more)]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "responses.sqlite")


async def until(happened: Any) -> None:
    deadline = time.monotonic() + 300
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.02)


@pytest.mark.whole
async def test_a_killed_run_repeats_only_what_was_in_flight(server, reply, file):
    def answers(asked: Any) -> Any:
        body = ANSWER if "completions" in asked.target else FOUND
        in_flight = len(server.asked) in (3, 4)
        return reply(body=json.dumps(body).encode(), delay_s=30.0 if in_flight else 0.0)

    server.answers = answers
    code = ASK.format(here=str(Path(__file__).parent), url=server.url, file=file)
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", code, start_new_session=True)
    await until(lambda: len(server.asked) == 4)
    os.killpg(killed.pid, signal.SIGKILL)
    await killed.wait()
    texts = await ask_all(server.url, file)
    assert len(server.asked) == 4 + 2, "what was answered is not asked again"
    assert texts[0] == texts[2] == "x" and "On the square." in texts[1]
    assert texts == await ask_all("http://127.0.0.1:9", file), "kept, whichever port a server on loopback has"
    spent, lost = CallStore(file).totals()
    assert spent == pytest.approx(2 * 0.02) and lost == pytest.approx(0.02), "what may have been paid for counts"
    assert CallStore(file).close_abandoned() == 1


async def test_a_command_that_is_gone_is_not_waited_for_on_other_machines(file):
    """Of a process elsewhere only its command can be looked up; without that it counts for a quarter of an hour."""
    store, now_s = CallStore(file), time.time()
    alive, gone = process_owner(), process_owner().rpartition(":")[0] + ":0"
    store.apply([Begin("a", "m", "elsewhere:1:1", "t1", run_owner=alive)])
    store.apply([Begin("b", "m", "elsewhere:1:1", "t2", run_owner=gone)])
    store.apply([Begin("c", "m", "elsewhere:1:1", "t3")])

    def begin(moment_s: float) -> list[str]:
        steps = [Begin(name, "m", alive, f"{name} {moment_s}", budget_usd=0.0, most_usd=1.0) for name in "abc"]
        return [one.what for one in CallStore(file, clock=lambda: moment_s).apply(steps)]

    assert begin(now_s) == ["wait", "exhausted", "wait"]
    assert begin(now_s + 1000) == ["exhausted"] * 3


async def test_equal_questions_at_once_are_asked_once_and_failures_are_not_kept(file):
    asked: list[int] = []

    async def ask() -> bytes:
        asked.append(1)
        await asyncio.sleep(0.05)
        if len(asked) == 1:
            raise ConnectionError("down")
        return b"answer"

    store = ResponseStore(file)
    with pytest.raises(ConnectionError):
        await ask_once(store, "tool", "key", ask)
    stores = [store, ResponseStore(file), ResponseStore(file)]
    assert set(await asyncio.gather(*(ask_once(one, "tool", "key", ask) for one in stores * 3))) == {b"answer"}
    assert len(asked) == 2
    assert store.find("tool", "key") == Response(b"answer", pytest.approx(time.time(), abs=60))
    assert store.find("other", "key") is None


async def test_a_service_that_fails_is_asked_again_and_one_that_refuses_is_not(server, reply, file):
    server.says(reply(500), reply(hang_up=True), reply(body=b"[]"), reply(422, b'{"detail": "no"}'))
    tools = tools_of(server.url, file)
    for kind in ("outage", "bad_response"):  # two tries, then an answer of the wrong form
        assert (await search(tools)).record.outage == kind
    refused = await search(tools)
    assert not refused.record.outage and "refused the request" in refused.record.error
    assert (await search(tools_of(server.url, file))).record == refused.record
    assert len(server.asked) == 4


async def test_a_geocoder_is_asked_once(server, file):
    place = {"lat": "48.85", "lon": "2.35", "display_name": "Paris", "address": {"country": "France", "city": "Paris"}}
    store, connection = ResponseStore(file), server.connection("geocoder")
    server.says_json([place])
    found = [await open_recalling(connection, store).search("Paris", limit) for limit in (1, 1, 2)]
    assert found[0] == found[1] == found[2] and found[0][0].city == "Paris" and len(server.asked) == 2
    server.says_json(place)
    assert [await open_recalling(connection, store).reverse(48.85, 2.35) for _ in range(2)] == [
        Address("France", "", "", "Paris")
    ] * 2
    server.says_json({"error": "Unable to geocode"})
    assert [await open_recalling(connection, store).reverse(0.0, 0.0) for _ in range(2)] == [None, None]
    assert len(server.asked) == 4


async def test_what_expires_goes_and_so_does_the_oldest_of_what_is_too_much(file, monkeypatch):
    monkeypatch.setattr(response_store, "MOST_BYTES", 50_000)
    monkeypatch.setattr(response_store, "TRIM_BYTES", 9_999)
    store = ResponseStore(file, clock=lambda: 1000.0)
    store.apply([Keep("tool", "for ever", bytes(90_000), 0.0)])
    store.apply([Keep("picture", "expired", bytes(10_000), 0.0, 999.0)])
    for number in range(10):
        store.apply([Keep("picture", str(number), bytes(10_000), 0.0, 2000.0)])
    assert [number for number in range(10) if store.find("picture", str(number))] == [5, 6, 7, 8, 9]
    assert store.find("tool", "for ever") and not store.find("picture", "expired")
    with sqlite3.connect(file) as raw:
        assert raw.execute("SELECT count(*) FROM responses").fetchone() == (6,)


def test_another_process_that_ends_leaves_the_log_to_those_still_connected(tmp_path):
    """A handle of the file that is closed ends this process's locks; another one would then delete the log in use."""
    path = tmp_path / "shared.sqlite"
    shared = SharedFile(path, ["CREATE TABLE IF NOT EXISTS rows (name TEXT)"], "rows", "delete it")
    with shared.transaction() as file:
        file.execute("INSERT INTO rows VALUES ('first')")
    other = threading.Thread(target=lambda: shared.reading().__enter__().execute("SELECT * FROM rows").fetchall())
    other.start()
    other.join()
    script = (
        "import sqlite3, sys; f = sqlite3.connect(sys.argv[1]); f.execute('INSERT INTO rows VALUES (1)'); f.commit()"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    assert path.with_name("shared.sqlite-wal").exists()
    with shared.transaction() as file:
        file.execute("INSERT INTO rows VALUES ('last')")
    assert sqlite3.connect(path).execute("SELECT name FROM rows").fetchall() == [("first",), ("1",), ("last",)]


def test_what_is_deleted_frees_the_disk(file, monkeypatch):
    monkeypatch.setattr(response_store, "TRIM_BYTES", 0)
    store = ResponseStore(file, clock=lambda: 1000.0)
    store.apply(
        [Keep("picture", str(number), bytes(100_000), 0.0, 999.0 if number else 2000.0) for number in range(50)]
    )
    with sqlite3.connect(file) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert Path(file).stat().st_size < 500_000


async def test_no_key_is_kept_and_the_file_is_its_users_alone(server, file, secret):
    server.says_json(ANSWER)
    await chat_of(server.url, file, secret).complete("m", HELLO)
    assert server.asked[0].headers["authorization"] == f"Bearer {secret}"
    assert stat.S_IMODE(Path(file).parent.stat().st_mode) == 0o700
    for path in Path(file).parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and secret.encode() not in path.read_bytes()


async def test_what_cannot_be_kept_is_not_used(server, file):
    Path(file).parent.mkdir()
    Path(file).write_bytes(b"not a database, and long enough to be none" * 40)
    server.says_json(FOUND)
    with pytest.raises(StageRefused, match="cannot be kept: file is not a database; free space there"):
        await search(tools_of(server.url, file))


def test_a_full_disk_is_named_and_what_was_written_before_stays(tmp_path):
    shared = SharedFile(tmp_path / "a.sqlite", ["CREATE TABLE IF NOT EXISTS t (x BLOB)"], "the counts", "delete it")
    with shared.transaction() as connection:
        connection.execute("INSERT INTO t VALUES (zeroblob(100))")
    with shared.reading() as connection:  # SQLite says of a file that may not grow what it says of a full disk
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")
    line = f"no space left on the disk of '{tmp_path / 'a.sqlite'}' for the counts; free some and run again"
    with pytest.raises(StageRefused, match=f"^{re.escape(line)}$"), shared.transaction() as connection:
        connection.execute("INSERT INTO t VALUES (zeroblob(1000000))")
    with shared.reading() as connection:
        connection.execute("PRAGMA max_page_count=100000")
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (1,)
    with shared.transaction() as connection:
        connection.execute("INSERT INTO t VALUES (zeroblob(1000000))")


async def test_a_failed_transaction_is_told_to_all_that_wait_and_the_next_goes_on(file):
    store = ResponseStore(file)
    failing = [True]

    class Full(ResponseStore):
        def apply(self, steps: Any) -> list[Any]:
            if failing[0]:
                raise StageRefused("full")
            return store.apply(steps)

    writer = writer_of(Full(file))
    steps = [Keep("tool", str(number), b"x", 0.0) for number in range(3)]
    told = await asyncio.gather(*(writer.write(step) for step in steps), return_exceptions=True)
    assert [type(one) for one in told] == [StageRefused] * 3
    failing[0] = False
    await writer.write(steps[0])
    assert store.find("tool", "0") and not store.find("tool", "1")


@pytest.mark.parametrize("head", [{}, {"text": "two\nlines \ud800", "n": [1.5, None]}])
@pytest.mark.parametrize("body", [b"", b"\n\n{", bytes(range(256))])
def test_json_and_bytes_come_back(head, body):
    assert unpack(pack(head, body)) == (head, body)
