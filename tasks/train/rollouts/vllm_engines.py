"""Rollouts by vLLM: a program in vLLM's own Python beside the trainer, given the policy's weights before each draw.

On a GPU vLLM reads the weights where the trainer has them, by its own weight transfer over CUDA IPC; on CPUs they go
through a folder in memory and vLLM's `reload_weights`. The trainer computes log-probabilities again for its loss.
"""

import contextlib
import copy
import functools
import hashlib
import logging
import math
import os
import queue
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.multiprocessing.reductions import reduce_tensor

from schemas.errors import GeofixError
from schemas.settings.pools import VLLM_PYTHON
from schemas.settings.train import RolloutVllmSettings
from tasks.runtime.on_ray.model_pools import vllm_python
from tasks.train.encoding import Encoder
from tasks.train.fast.adapters import merged_state
from tasks.train.fast.model import FastModel
from tasks.train.fast.padding import plain_state
from tasks.train.rollouts import vllm_program
from tasks.train.rollouts.engine import Rollout
from tasks.train.rollouts.engines import RolloutEngines
from tasks.train.rollouts.sampling import Sampling
from tasks.train.token_samples import Sample

LOOK_S = 0.02  # between two looks for prompts that have come while others are being written
LOG_LINES = 60
MEMORY = Path("/dev/shm")  # where weights go through on CPUs, if there is such a folder
# On CPUs vLLM would take a share of the machine's memory and bind its threads to cores that others use.
CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
# Handles of CUDA memory travel pickled: from this process to its own child, over a socket that only they know.
ENV = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}

logger = logging.getLogger(__name__)


class VllmProcess:
    """vLLM in a process of its own, which ends with this one."""

    def __init__(self, folder: Path, arguments: dict[str, Any], settings: RolloutVllmSettings, is_gpu: bool) -> None:
        """`folder` is its own, and goes with it."""
        python = vllm_python(settings.python)
        if shutil.which(python) is None:
            raise GeofixError(
                f"train.grpo.engine=vllm: there is no Python with vLLM at {python}: `make vllm` installs it in "
                f".venv-vllm; elsewhere name it in train.grpo.vllm.python or {VLLM_PYTHON}"
            )
        self._log = folder / "vllm.log"
        key = secrets.token_bytes(32)
        environment = {**os.environ, **ENV, **({} if is_gpu else CPU_ENV), **settings.env}
        listener = Listener(str(folder / "socket"), family="AF_UNIX", authkey=key)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                # -P: modules beside the program are not taken for those that vLLM imports
                [python, "-P", str(Path(vllm_program.__file__).absolute()), str(listener.address)],
                stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
            )  # fmt: skip
        self._end = weakref.finalize(self, _end, self._process, folder)
        assert self._process.stdin is not None
        self._process.stdin.write(key.hex().encode() + b"\n")
        self._process.stdin.close()
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._count = 0
        self._connection = self._accepted(listener, time.monotonic() + settings.start_s)
        self._connection.send({**arguments, "shares_memory": is_gpu})
        ready: Future[Any] = Future()
        self._waiting[0] = ready
        threading.Thread(target=_read, args=(self._connection, self._waiting), name="vllm", daemon=True).start()
        self.version: str = self._result(ready, settings.start_s)

    def call(self, name: str, **arguments: Any) -> Future[Any]:
        """Ask the program; the answer comes as a future."""
        answer: Future[Any] = Future()
        with self._lock:
            self._count += 1
            self._waiting[self._count] = answer
            try:
                self._connection.send((self._count, name, arguments))
            except OSError as error:
                raise self.failure("its process ended") from error
        return answer

    def result(self, answer: Future[Any]) -> Any:
        """A future's value; GeofixError where the program failed or ended."""
        return self._result(answer, None)

    def failure(self, why: str) -> GeofixError:
        """What went wrong, with the last error of vLLM's log; the end of that log goes into ours."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        error_lines = [line.split("]")[-1].strip() for line in lines if "Error" in line and "root cause" not in line]
        logger.warning("the log of vLLM ends: %s", "\n".join(lines[-LOG_LINES:]))
        return GeofixError(f"vLLM failed: {why}{f'; its log says: {error_lines[-1][:300]}' if error_lines else ''}")

    def close(self) -> None:
        """End it now."""
        self._connection.close()
        self._end()

    def _accepted(self, listener: Listener, until_s: float) -> Connection:
        """The program's connection, unless it ends before it has connected."""
        connected: Future[Connection] = Future()

        def accept() -> None:
            try:
                connected.set_result(listener.accept())
            except (OSError, EOFError) as error:
                connected.set_exception(error)

        threading.Thread(target=accept, daemon=True).start()
        while not connected.done():
            if self._process.poll() is not None or time.monotonic() > until_s:
                raise self.failure("its program did not start")
            time.sleep(LOOK_S)
        listener.close()
        return connected.result()

    def _result(self, answer: Future[Any], timeout_s: float | None) -> Any:
        try:
            return answer.result(timeout_s)
        except TimeoutError as error:
            raise self.failure(f"it did not start within {timeout_s:g} s") from error
        except EOFError as error:
            raise self.failure("its process ended") from error
        except RuntimeError as error:
            raise self.failure(str(error)) from error


def _read(connection: Connection, waiting: dict[int, Future[Any]]) -> None:
    try:
        while True:
            number, value = connection.recv()
            answer = waiting.pop(number)
            if isinstance(value, Exception):
                answer.set_exception(value)
            else:
                answer.set_result(value)
    except (EOFError, OSError):
        for answer in list(waiting.values()):
            answer.set_exception(EOFError())


def _put(done: queue.SimpleQueue[tuple[int, Future[Any]]], number: int, answer: Future[Any]) -> None:
    done.put((number, answer))


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """The process and those that vLLM started, which are its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


class VllmEngines(RolloutEngines):
    """Draws rollouts by vLLM with the weights of `fast`; the process starts with the first draw."""

    def __init__(
        self, fast: FastModel, encoder: Encoder, end_tokens: Sequence[int], settings: RolloutVllmSettings
    ) -> None:
        self._fast, self._encoder, self._ends, self._settings = fast, encoder, list(end_tokens), settings
        self._process: VllmProcess | None = None
        self._sent: set[str] = set()  # pictures that vLLM has
        self.version = ""  # of vLLM, once it is up
        self.started_s = self.synced_s = 0.0  # the start, and the last transfer of weights

    def refresh_weights(self) -> None:
        """Give vLLM the policy's weights as they are now."""
        process = self._opened()
        began = time.monotonic()
        state = self._state()
        if self._fast.device.type == "cuda":
            torch.cuda.synchronize(self._fast.device)
            process.result(process.call("load", handles=_shared(state, self._fast.device)))
            torch.cuda.ipc_collect()
        else:
            with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
                _save(state, Path(folder))
                process.result(process.call("load", folder=folder))
        self._sent.clear()
        self.synced_s = time.monotonic() - began

    def stream(
        self, prompts: Sequence[Sample], size: int, new_tokens: int, sampling: Sampling
    ) -> Iterator[tuple[int, list[Rollout]]]:
        waiting = iter(prompts)
        return self._serve(lambda waits: next(waiting, None), size, new_tokens, sampling)

    def serve(
        self, take: Callable[[int, bool], Sample | None], longest: int, count: int, new_tokens: int, sampling: Sampling
    ) -> Iterator[tuple[int, list[Rollout]]]:
        """One rollout of each prompt as prompts come; vLLM decides how many are written side by side."""
        return self._serve(lambda waits: take(1 << 30, waits), 1, new_tokens, sampling)

    def clear(self) -> None:
        """vLLM's share of the memory is its own: nothing is freed between draws."""

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def _serve(
        self, take: Callable[[bool], Sample | None], size: int, new_tokens: int, sampling: Sampling
    ) -> Iterator[tuple[int, list[Rollout]]]:
        process = self._opened()
        done: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()
        is_plain = sampling.temperature in (0, 1)  # vLLM's log-probabilities are those before temperature
        sent = answered = 0
        while True:
            while (prompt := take(sent == answered)) is not None:
                answer = self._ask(process, prompt, size, new_tokens, sampling)
                answer.add_done_callback(functools.partial(_put, done, sent))
                sent += 1
            if sent == answered:
                return
            try:
                number, answer = done.get(timeout=LOOK_S)
            except queue.Empty:
                continue
            answered += 1
            sampled: list[tuple[list[int], list[float]]] = process.result(answer)
            if not is_plain:
                sampled = [(ids, [math.nan] * len(ids)) for ids, _ in sampled]
            yield number, [Rollout(ids, log_probs, ids[-1] in self._ends) for ids, log_probs in sampled]

    def _ask(self, process: VllmProcess, prompt: Sample, size: int, new_tokens: int, sampling: Sampling) -> Future[Any]:
        pictures: list[tuple[str, Any]] = []
        for pixels in self._encoder.pictures(prompt):
            digest = hashlib.sha256(pixels.tobytes() + str(pixels.shape).encode()).hexdigest()
            pictures.append((digest, None if digest in self._sent else pixels))
            self._sent.add(digest)
        config = self._fast.model.config
        banned = (config.image_token_id, config.video_token_id)
        return process.call(
            "generate",
            ids=self._encoder.marked(prompt),
            pictures=pictures,
            length=len(prompt.ids),
            sampling={
                "n": size, "max_tokens": new_tokens, "temperature": sampling.temperature, "top_k": sampling.top_k,
                "top_p": sampling.top_p, "stop_token_ids": self._ends,
                "logit_bias": dict.fromkeys(banned, -100.0),  # the least that vLLM takes
            },
        )  # fmt: skip

    def _opened(self) -> VllmProcess:
        if self._process is None:
            began = time.monotonic()
            is_gpu = self._fast.device.type == "cuda"
            folder = Path(tempfile.mkdtemp(prefix="geofix-vllm-"))
            config = copy.deepcopy(self._fast.model.config)
            config.architectures = [type(self._fast.model).__name__]  # a model made in memory does not say
            # vLLM's reload leaves a head that is tied to the embeddings as it was: it gets one of its own.
            config.tie_word_embeddings = config.text_config.tie_word_embeddings = False
            config.save_pretrained(folder)
            self._encoder.save_processor(folder)
            if not is_gpu:  # what began without weights reloads none from a folder
                _save(self._state(), folder)
            own: dict[str, Any] = {
                "model": str(folder), "load_format": "dummy" if is_gpu else "auto",
                "dtype": "bfloat16" if is_gpu else "float32", "enforce_eager": not is_gpu,
                "gpu_memory_utilization": self._settings.memory_share, "logprobs_mode": "raw_logprobs",
                "limit_mm_per_prompt": {"image": 16}, "generation_config": "vllm",
            }  # fmt: skip
            arguments = {name: value for name, value in (own | self._settings.engine_args).items() if value is not None}
            self._process = VllmProcess(folder, arguments, self._settings, is_gpu)
            self.started_s, self.version = time.monotonic() - began, self._process.version
        return self._process

    def _state(self) -> dict[str, torch.Tensor]:
        """The weights as a checkpoint has them: without padding, adapters added."""
        model = self._fast.model
        return {name: tensor.contiguous() for name, tensor in merged_state(model, plain_state(model)).items()}


def _shared(state: dict[str, torch.Tensor], device: torch.device) -> dict[str, Any]:
    """Names, types and shapes of the weights, and how another process on this GPU finds them: vLLM's own form."""
    gpu = str(torch.cuda.get_device_properties(device).uuid)
    return {
        "names": list(state),
        "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in state.values()],
        "shapes": [list(tensor.shape) for tensor in state.values()],
        "ipc_handles": [{gpu: reduce_tensor(tensor)[1]} for tensor in state.values()],
    }


def _save(state: dict[str, torch.Tensor], folder: Path) -> None:
    """A checkpoint; of weights that share memory, which safetensors refuses, copies."""
    seen: set[int] = set()
    apart: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        apart[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    save_file(apart, folder / "model.safetensors", {"format": "pt"})
