"""The process that sends paid requests and those of tools: a killed run loses no answer, and asks for none twice."""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.errors import StageRefused
from schemas.messages import ToolCall
from schemas.settings.models import ModelsSettings
from schemas.settings.services import ServicesSettings
from tasks.agent.service_tools import open_toolbox
from tasks.agent.tool_cache import FileCache
from tasks.agent.toolbox import SPOTAGENT, CallResult, Toolbox
from tasks.agent.tools import ToolContext
from tasks.services import Chat, Search, ServiceError, broker_client, connect
from tasks.services import broker as broker_process
from tasks.services import call_file as call_file_module
from tasks.services.broker_client import Limits, send, start
from tasks.services.call_file import CallFile
from tasks.services.calls import CallLog
from tasks.services.rate_budget import PROCESS_BUDGET, ProcessRateBudget

HELLO = [{"role": "user", "content": "hi"}]
LIMITS = Limits(30, 30, 30, 1_000_000, by_proxy=False)
ANSWER = {
    "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1000, "completion_tokens": 100},
}
# What a worker does: ask, then be killed from outside while it waits.
ASK = """
import asyncio, sys
sys.path.insert(0, {here!r})
from test_broker import HELLO, chat_of
asyncio.run(chat_of({url!r}, {file!r}, budget_usd=1.0).complete("m", HELLO, seed=1))
"""


def chat_of(url: str, file: str, price: Any = None, key: str | None = None, **log: Any) -> Chat:
    endpoint = {"base_url": url, "timeout_s": 30, "total_timeout_s": 30, "max_attempts": 3, "backoff_s": 0.01}
    endpoint |= {"key_env": "KEY"} if key else {}
    roles = {"m": {"endpoint": "own", "price": price or {"prompt": 10, "completion": 100}, "max_tokens": 100}}
    settings = ModelsSettings.model_validate({"endpoints": {"own": endpoint}, "roles": roles})
    calls = CallLog(CallFile(file), "stage", "run", **{"broker": file, **log})
    connections = connect(ServicesSettings(), {"KEY": key or ""}, models=settings).sharing(PROCESS_BUDGET, calls)
    return Chat(connections.chat)


def broker_of(file: str) -> int:
    """The process that serves a file."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"\0{file}\0" in (entry / "cmdline").read_text():
                return int(entry.name)
    raise AssertionError("no broker runs")


@pytest.fixture
def file(tmp_path: Path) -> Any:
    path = str(tmp_path / "calls.sqlite")
    CallFile(path).spent()  # makes the tables
    yield path
    with contextlib.suppress(AssertionError):
        os.kill(broker_of(path), signal.SIGKILL)


async def until(happened: Any) -> None:
    deadline = time.monotonic() + 300
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.02)


async def test_a_killed_run_loses_no_answer_and_pays_once(server, reply, file):
    server.says(reply(body=json.dumps(ANSWER).encode(), delay_s=0.5))
    code = ASK.format(here=str(Path(__file__).parent), url=server.url, file=file)
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", code, start_new_session=True)
    await until(lambda: server.asked)
    os.killpg(killed.pid, signal.SIGKILL)  # its whole group, as a terminal that is closed would
    await killed.wait()
    again = await chat_of(server.url, file, budget_usd=1.0).complete("m", HELLO, seed=1)
    assert again.text == "x" and len(server.asked) == 1, "it was under way, and waited for"
    assert CallFile(file).spent() == (pytest.approx(0.02), 0.0), "what was lost is found"
    assert CallFile(file).abandoned() == 1
    with CallFile(file)._file.transaction() as rows:
        assert rows.execute("SELECT count(*) FROM answers").fetchone() == (0,), "it is a row of calls now"


async def test_requests_that_find_no_broker_start_one_together(server, reply, file, monkeypatch):
    server.says(*(reply(body=json.dumps(ANSWER).encode()) for _ in range(10)))
    started, run = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **how: started.append(command) or run(command, **how))
    chat = chat_of(server.url, file)
    replies = await asyncio.gather(*(chat.complete("m", HELLO, seed=seed) for seed in range(10)))
    assert [one.text for one in replies] == ["x"] * 10 and len(started) == 1


async def test_an_answer_that_came_after_the_end_is_found_by_the_next_broker(server, reply, file):
    server.says(reply(body=json.dumps(ANSWER).encode(), delay_s=0.2))
    asking = asyncio.create_task(chat_of(server.url, file).complete("m", HELLO))
    await until(lambda: server.asked)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(lambda: _answers(file) == 1)
    os.kill(broker_of(file), signal.SIGKILL)
    assert (await chat_of(server.url, file).complete("m", HELLO)).text == "x" and len(server.asked) == 1


async def test_a_failure_is_forgotten_and_a_bad_answer_is_not_given_again(server, reply, file):
    good = json.dumps(ANSWER).encode()
    server.says(reply(500), reply(hang_up=True), reply(body=b'{"choi'), reply(body=good))
    with pytest.raises(ServiceError, match="not JSON"):  # three tries
        await chat_of(server.url, file).complete("m", HELLO)
    assert (await chat_of(server.url, file).complete("m", HELLO)).text == "x"
    keys = [one.headers["idempotency-key"] for one in server.asked]
    assert [key.rpartition("-")[2] for key in keys] == ["0", "1", "2", "0"]
    assert len({key.rpartition("-")[0] for key in keys}) == 1


async def test_equal_requests_of_two_runs_are_one(server, reply, file):
    server.says(reply(body=b"{}", delay_s=0.2))
    request = "POST", server.url, [], b"{}"
    await send(file, "first", 0, *request, LIMITS)  # a broker runs: the next reach it in the order they are sent
    server.asked.clear()
    answers = await asyncio.gather(*(send(file, "a", attempt, *request, LIMITS) for attempt in (1, 0, 0, 1)))
    assert len(server.asked) == 1 and {one.status_code for one in answers} == {200}
    await send(file, "a", 2, *request, LIMITS)
    assert len(server.asked) == 2, "a further try at it is another request"


async def test_questions_at_once_share_a_connection_and_one_given_up_leaves_the_others(
    server, reply, file, monkeypatch
):
    server.answers = lambda asked: reply(body=asked.body[::-1], delay_s=0.3)
    opened, opens = [], broker_client._open
    await asyncio.to_thread(start, file)
    monkeypatch.setattr(broker_client, "_open", lambda path: opened.append(path) or opens(path))
    monkeypatch.setattr(broker_client, "LINES", 1)
    bodies = [b"%d" % number * 150_000 for number in range(8)]  # more than a socket takes at once
    asking = [asyncio.create_task(send(file, str(n), 0, "POST", server.url, [], bodies[n], LIMITS)) for n in range(8)]
    await until(lambda: server.asked)
    asking[3].cancel()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(answers.pop(3), asyncio.CancelledError) and len(opened) == 1
    found = [b"".join([piece async for piece in one.aiter_raw()]) for one in answers]
    assert found == [body[::-1] for body in bodies[:3] + bodies[4:]]
    await send(file, "3", 0, "POST", server.url, [], bodies[3], LIMITS)
    assert len(opened) == 2, "without questions it was closed"
    assert len(server.asked) == 8, "what was given up had been sent, and was kept"


async def test_many_questions_take_a_few_connections_and_each_call_its_own(server, reply, file, monkeypatch):
    server.answers = lambda asked: reply(body=asked.body, delay_s=0.3)
    opened, opens = [], broker_client._open
    await asyncio.to_thread(start, file)
    monkeypatch.setattr(broker_client, "_open", lambda path: opened.append(path) or opens(path))
    ids = [hashlib.sha256(b"%d" % n).hexdigest() for n in range(100)]
    asked = [send(file, one, 0, "POST", server.url, [], one.encode(), LIMITS) for one in ids]
    answers = await asyncio.gather(*asked)
    assert [one.whole().decode() for one in answers] == ids
    assert len(opened) == broker_client.LINES
    opened.clear()
    await asyncio.gather(*(send(file, ids[0], attempt, "POST", server.url, [], b"x", LIMITS) for attempt in (1, 2, 3)))
    assert len(opened) == 1


async def test_a_message_of_no_sense_ends_its_connection_alone(server, file):
    server.says_json({}, delay_s=0.3)
    await asyncio.to_thread(start, file)
    asking = asyncio.create_task(send(file, "a", 0, "POST", server.url, [], b"{}", LIMITS))
    for nonsense in (broker_process.FRAME.pack(1, 2, 0) + b"{]", b"\xff" * 64):
        reader, writer = await asyncio.open_unix_connection(broker_process.socket_path(file))
        writer.write(nonsense)
        assert await reader.read() == b""
        writer.close()
    assert (await asking).status_code == 200 and len(server.asked) == 1


async def test_no_key_is_left_anywhere_and_the_socket_is_its_users_alone(server, file, monkeypatch, secret):
    monkeypatch.setenv("KEY", secret)
    server.says_json(ANSWER)
    await chat_of(server.url, file, key=secret).complete("m", HELLO)
    assert server.asked[0].headers["authorization"] == f"Bearer {secret}"
    assert stat.S_IMODE(Path(broker_process.socket_path(file)).stat().st_mode) == 0o600
    process = Path(f"/proc/{broker_of(file)}")
    assert secret not in (process / "cmdline").read_text() + (process / "environ").read_text()
    assert not any(
        secret.encode() in path.read_bytes() for path in Path(file).parent.glob("calls.sqlite*") if path.is_file()
    )


def _is_free(lock: str) -> bool:
    with Path(lock).open() as opened, contextlib.suppress(BlockingIOError):
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


async def test_it_is_the_only_one_and_ends_by_itself(server, tmp_path):
    file = str(tmp_path / ("long" * 30) / "calls.sqlite")  # longer than a socket's path may be
    CallFile(file).spent()
    server.says_json({})
    await asyncio.gather(*(asyncio.to_thread(start, file, 600.0) for _ in range(3)))
    first = broker_of(file)
    await send(file, "a", 0, "POST", server.url, [], b"{}", LIMITS)
    assert broker_of(file) == first
    os.kill(first, signal.SIGKILL)
    await until(lambda: _is_free(f"{file}.broker.lock"))  # or the next one would take it for running
    await asyncio.to_thread(start, file, 0.1)
    await until(lambda: not Path(broker_process.socket_path(file)).exists())
    await send(file, "a", 0, "POST", server.url, [], b"{}", LIMITS)
    assert len(server.asked) == 1
    os.kill(broker_of(file), signal.SIGKILL)


async def test_what_cannot_be_written_down_is_not_used(server, file):
    server.says_json({})
    with CallFile(file)._file.transaction() as rows:
        rows.execute("DROP TABLE answers")
        rows.execute("CREATE TABLE answers (call_id, attempt, status, headers, body)")  # a column too few
    with pytest.raises(StageRefused, match="cannot be kept: table answers has 5 columns"):
        await send(file, "a", 0, "POST", server.url, [], b"{}", LIMITS)
    assert len(server.asked) == 1


async def test_free_models_are_asked_without_it(server, file):
    server.says_json(ANSWER)
    await chat_of(server.url, file, price={"prompt": 0, "completion": 0}).complete("m", HELLO)
    assert len(server.asked) == 1 and not Path(broker_process.socket_path(file)).exists()


def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(StageRefused, match=r"does not start: .*No such file"):
        start(str(tmp_path / "missing" / "calls.sqlite"))


def _answers(file: str) -> int:
    with CallFile(file)._file.transaction() as rows:
        return int(rows.execute("SELECT count(*) FROM answers").fetchone()[0])


def test_it_imports_nothing_of_ours() -> None:
    code = f"import runpy, sys; runpy.run_path({broker_process.__file__!r}); print('tasks' in sys.modules)"
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


# Tools

FOUND = {"results": [{"title": "Bakery", "url": "https://x.org", "content": "On the square.", "score": 1}]}
JSON = {"content-type": "application/json"}
ASK_TOOL = """
import asyncio, sys
sys.path.insert(0, {here!r})
from test_broker import ask, tools_of
asyncio.run(ask(tools_of({url!r}, {file!r})))
"""


def tools_of(url: str, file: str, **search: Any) -> Toolbox:
    """The tools as a worker of a stage has them, the web search at this address."""
    endpoint = {"base_url": url, "timeout_s": 30, "total_timeout_s": 30, "max_attempts": 2, "backoff_s": 0.01}
    services = ServicesSettings.model_validate({"search": {**endpoint, **search}})
    calls = CallLog(CallFile(file), "stage", "run", broker=file)
    return open_toolbox(connect(services, {}).sharing(ProcessRateBudget(), calls), Path(file).parent)


async def ask(tools: Toolbox, query: str = "bakery") -> CallResult:
    return await tools.call(ToolCall("c", "search_web", f'{{"query": "{query}"}}'), None, SPOTAGENT)


async def test_a_killed_run_repeats_no_request_of_a_tool(server, reply, file):
    server.says_json(FOUND, delay_s=0.5)
    code = ASK_TOOL.format(here=str(Path(__file__).parent), url=server.url, file=file)
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", code, start_new_session=True)
    await until(lambda: server.asked)
    os.killpg(killed.pid, signal.SIGKILL)
    await killed.wait()
    again = await ask(tools_of(server.url, file))
    assert again.record.succeeded and "On the square." in again.text
    assert len(server.asked) == 1, "it was under way, and waited for"
    server.says_json({}, status=500)
    assert (await ask(tools_of("http://127.0.0.1:9", file))).text == again.text, "kept, whichever port a world has"


async def test_a_broker_that_is_killed_costs_a_repeated_request_and_no_answer(server, file):
    server.says_json(FOUND, delay_s=0.3)
    asking = asyncio.create_task(ask(tools_of(server.url, file)))
    await until(lambda: server.asked)
    os.kill(broker_of(file), signal.SIGKILL)
    assert (await asking).record.succeeded
    assert len({one.headers["idempotency-key"] for one in server.asked}) == 1, "a server can tell that it is the same"


async def test_a_service_that_fails_is_asked_again_and_one_that_refuses_is_not(server, reply, file):
    server.says(reply(500), reply(hang_up=True), reply(body=b"[]"), reply(422, b'{"detail": "no"}'))
    tools = tools_of(server.url, file)
    for kind in ("outage", "bad_response"):  # two tries, then an answer of the wrong form
        assert (await ask(tools)).record.outage == kind
    refused = await ask(tools)
    assert not refused.record.outage and "refused the request" in refused.record.error
    assert len(server.asked) == 4
    for lost in (False, True):  # the cache is lost, as if the run had been killed before it wrote there
        if lost:
            Path(file).with_name("tools.sqlite").unlink()
        assert (await ask(tools_of(server.url, file))).record == refused.record
    assert len(server.asked) == 4


async def test_workers_that_ask_the_same_at_once_or_late_ask_once(server, file, monkeypatch):
    server.says_json(FOUND, delay_s=0.2)
    answers = await asyncio.gather(*(ask(tools_of(server.url, file)) for _ in range(3)))
    assert len({one.text for one in answers}) == 1 and len(server.asked) == 1
    Path(file).with_name("tools.sqlite").unlink()  # one that had looked there before the first wrote
    await ask(tools_of(server.url, file))
    assert len(server.asked) == 1
    monkeypatch.setattr(call_file_module, "USED_S", 0.0)
    await ask(tools_of(server.url, file), "another")
    with CallFile(file)._file.transaction() as rows:
        assert rows.execute("SELECT count(*) FROM answers").fetchone()[0] <= 1, "what is used is not kept for ever"


async def test_budgets_and_sizes_hold_for_what_the_broker_sends(server, file):
    server.says_json(FOUND)
    tools = tools_of(server.url, file, requests_per_day=1, max_body_mb=0.001)
    assert (await ask(tools)).record.succeeded
    assert (await ask(tools, "another")).record.outage == "quota" and len(server.asked) == 1
    server.says_json({"results": [{"content": "x" * 5000}]})
    assert (await ask(tools_of(server.url, file, max_body_mb=0.001), "large")).record.outage == "bad_response"


async def test_a_broker_of_another_machine_is_reached_by_a_relay(server, file):
    class Relay:
        passed = 0

        async def ask(self, said: bytes, body: bytes) -> broker_client.Answered:
            self.passed += 1
            return await broker_client.ask(file, said, body)

    relay, calls = Relay(), CallFile(file)
    server.says_json(ANSWER)
    assert (await chat_of(server.url, file, broker=relay).complete("m", HELLO, seed=1)).text == "x"
    server.says_json(FOUND)
    cache = FileCache(Path(file).with_name("tools.sqlite"), "x", CallLog(calls, broker=relay))
    tools = Toolbox(ToolContext(search=Search(server.connection("search"))), cache=cache)
    assert (await ask(tools)).record.succeeded
    assert relay.passed == len(server.asked) == 2 and broker_of(file)


async def test_what_has_a_way_of_its_own_or_another_host_is_not_sent_by_the_broker(server, file):
    """The guard against private addresses is a way of its own; hosts that answers name are other hosts."""
    asked: list[str] = []

    def guarded(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, headers=JSON, stream=httpx.ByteStream(json.dumps(FOUND).encode()))

    search = Search(server.connection("search"), transport=lambda: httpx.MockTransport(guarded))
    cache = FileCache(Path(file).with_name("tools.sqlite"), "x", CallLog(CallFile(file), broker=file))
    assert (await ask(Toolbox(ToolContext(search=search), cache=cache))).record.succeeded
    assert len(asked) == 1 and not server.asked

    class Follows:
        """A search that fetches what it finds."""

        http = server.client(Search, "search")._http

        async def search(self, query: str, max_results: int = 5) -> list[Any]:
            await self.http.request("GET", url=server.url + "/page", accept="*/*")
            return []

    server.says_json({})
    assert (await ask(Toolbox(ToolContext(search=Follows()), cache=cache), "page")).record.succeeded
    assert len(server.asked) == 1 and not Path(broker_process.socket_path(file)).exists()


async def test_what_a_tool_cannot_keep_is_not_used(server, tmp_path):
    path = tmp_path / "calls.sqlite"
    CallFile(path).spent()
    tools = tools_of(server.url, str(path))
    for name in ("calls.sqlite", "calls.sqlite-wal", "calls.sqlite-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    path.write_bytes(b"not a database, and long enough to be none" * 40)
    server.says_json(FOUND)
    with pytest.raises(StageRefused, match="cannot be kept"):
        await ask(tools)
