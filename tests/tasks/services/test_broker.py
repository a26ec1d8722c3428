"""The process that sends paid requests: a run that is killed loses no answer, and none is asked for twice."""

import asyncio
import contextlib
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
from schemas.settings.models import ModelsSettings
from schemas.settings.services import ServicesSettings
from tasks.services import Chat, ServiceError, connect
from tasks.services import broker as broker_process
from tasks.services.broker_client import Limits, send, start
from tasks.services.call_file import CallFile
from tasks.services.calls import CallLog
from tasks.services.rate_budget import PROCESS_BUDGET

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
    calls = CallLog(CallFile(file), "stage", "run", broker=file, **log)
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
    deadline = time.monotonic() + 60
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
    request = httpx.Request("POST", server.url, json={})
    answers = await asyncio.gather(*(send(file, "a", attempt, request, LIMITS) for attempt in (1, 0, 0, 1)))
    assert len(server.asked) == 1 and {one.status_code for one in answers} == {200}
    await send(file, "a", 2, request, LIMITS)
    assert len(server.asked) == 2, "a further try at it is another request"


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


async def test_it_is_the_only_one_and_ends_by_itself(server, tmp_path):
    file = str(tmp_path / ("long" * 30) / "calls.sqlite")  # longer than a socket's path may be
    CallFile(file).spent()
    server.says_json({})
    await asyncio.gather(*(asyncio.to_thread(start, file, 0.3) for _ in range(3)))
    first = broker_of(file)
    await send(file, "a", 0, httpx.Request("POST", server.url, json={}), LIMITS)
    assert broker_of(file) == first
    await until(lambda: not Path(broker_process.socket_path(file)).exists())
    await until(lambda: not Path(f"/proc/{first}").exists())
    await send(file, "a", 0, httpx.Request("POST", server.url, json={}), LIMITS)
    assert len(server.asked) == 1
    os.kill(broker_of(file), signal.SIGKILL)


async def test_what_cannot_be_written_down_is_not_used(server, file):
    server.says_json({})
    with CallFile(file)._file.transaction() as rows:
        rows.execute("DROP TABLE answers")
        rows.execute("CREATE TABLE answers (call_id, attempt, status, headers, body)")  # a column too few
    with pytest.raises(StageRefused, match="cannot be kept: table answers has 5 columns"):
        await send(file, "a", 0, httpx.Request("POST", server.url, json={}), LIMITS)
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
