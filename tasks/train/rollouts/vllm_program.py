"""vLLM's side of GRPO's rollouts: a program that vLLM's own Python runs, started by the trainer (`vllm_engines.py`).

Tokens and pictures come in, tokens and their log-probabilities go out, over a Unix socket: what the policy wrote is
never turned into text and back, which need not give the same tokens. The program ends when the trainer does, however
it ends. It imports nothing of geofix, which is not installed beside vLLM. Everything it calls of vLLM is public, and
the same in vLLM 0.24 and 0.29.
"""

import asyncio
import base64
import contextlib
import os
import pickle
import signal
import sys
import threading
from multiprocessing.connection import Client, Connection
from typing import Any


class Program:
    """Answers the trainer's requests, each as a task of its own: vLLM batches them."""

    def __init__(self, connection: Connection, engine: Any) -> None:
        self._connection, self._engine = connection, engine
        self._writing = threading.Lock()
        self._pictures: dict[str, Any] = {}  # of this generation, by their digest: each travels once

    async def answer(self, number: int, name: str, arguments: dict[str, Any]) -> None:
        """One request, with its error where it fails."""
        try:
            result = await getattr(self, name)(**arguments)
        except Exception as error:  # noqa: BLE001 - said to the trainer, which raises it
            result = RuntimeError(f"{type(error).__name__}: {error}")
        with self._writing:
            self._connection.send((number, result))

    async def generate(
        self, ids: list[int], pictures: list[tuple[str, Any]], length: int, sampling: dict[str, Any]
    ) -> list[tuple[list[int], list[float]]]:
        """Completions of a prompt, whose pictures are one mark each in `ids`; `length` is the prompt's with all."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        prompt: dict[str, Any] = {"prompt_token_ids": ids}
        if pictures:
            prompt["multi_modal_data"] = {"image": [self._picture(*picture) for picture in pictures]}
        params = SamplingParams(
            **sampling, logprobs=0, detokenize=False, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY
        )
        [last] = [output async for output in self._engine.generate(prompt, params, os.urandom(8).hex())]
        if len(last.prompt_token_ids) != length:
            raise ValueError(f"vLLM read {len(last.prompt_token_ids)} tokens of a prompt, the trainer wrote {length}")
        return [
            (
                list(output.token_ids),
                [at[token].logprob for at, token in zip(output.logprobs, output.token_ids, strict=True)],
            )
            for output in last.outputs
        ]

    def _picture(self, digest: str, pixels: Any) -> Any:
        from PIL import Image

        if pixels is not None:
            self._pictures[digest] = Image.fromarray(pixels)
        return self._pictures[digest]

    async def load(self, folder: str | None = None, handles: dict[str, Any] | None = None) -> None:
        """New weights: a folder of safetensors, or CUDA memory of the trainer that is read where it lies."""
        if handles is not None:
            from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

            shared = base64.b64encode(pickle.dumps(handles.pop("ipc_handles"))).decode()
            await self._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))
            await self._engine.start_weight_update()
            await self._engine.update_weights(
                WeightTransferUpdateRequest(update_info={**handles, "ipc_handles_pickled": shared})
            )
            await self._engine.finish_weight_update()
        else:
            await self._engine.collective_rpc("reload_weights", kwargs={"weights_path": folder})
        # Keys, values and pictures as the weights before saw them.
        await self._engine.reset_prefix_cache()
        await self._engine.reset_encoder_cache()
        self._pictures.clear()


def main() -> None:
    """Connect to the trainer at the address given, take the engine's arguments, answer until it hangs up."""
    connection = Client(sys.argv[1], family="AF_UNIX", authkey=bytes.fromhex(sys.stdin.readline()))
    arguments = connection.recv()
    from vllm import AsyncEngineArgs, AsyncLLMEngine, __version__

    if arguments.pop("shares_memory"):
        from vllm.config import WeightTransferConfig

        arguments["weight_transfer_config"] = WeightTransferConfig(backend="ipc")

    async def serve() -> None:
        engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(**arguments))
        program, loop = Program(connection, engine), asyncio.get_running_loop()
        running: set[asyncio.Task[None]] = set()

        def start(*request: Any) -> None:
            task = loop.create_task(program.answer(*request))
            running.add(task)
            task.add_done_callback(running.discard)

        def read() -> None:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    loop.call_soon_threadsafe(start, *connection.recv())
            end()

        connection.send((0, __version__))
        threading.Thread(target=read, daemon=True).start()
        await asyncio.Event().wait()

    asyncio.run(serve())


def end() -> None:
    """This process and those that vLLM started: they are a process group of their own."""
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
