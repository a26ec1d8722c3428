"""A replica of a pool that is queried through Ray instead of HTTP: vLLM in an actor, whole chat requests as calls.

vLLM batches whatever is under way, so a caller hands over each request as it has it. The actor runs in vLLM's own
Python, where geofix is not installed: its class is sent by value, and uses nothing of geofix.
"""

from typing import Any


def engine_actor_class() -> type:
    """The actor's class, nested so that Ray sends it by value."""

    class EngineActor:
        def __init__(self, source: str, engine_args: dict[str, Any]) -> None:
            self._arguments = {"model": source, **engine_args}
            self._engine: Any = None

        async def ready(self) -> str:
            """Load the model; the version of vLLM."""
            from vllm import AsyncEngineArgs, AsyncLLMEngine, __version__

            if self._engine is None:  # nothing is awaited meanwhile: no second call comes here
                self._engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(**self._arguments))
            return str(__version__)

        async def complete(self, body: bytes) -> tuple[int, bytes]:
            """Status and body of the answer to a chat request, as vLLM's server would give them."""
            import json

            from vllm.exceptions import VLLMValidationError

            await self.ready()  # again, where Ray has restarted the actor
            request = json.loads(body)
            try:
                completion = await self._completion(request)
            except (VLLMValidationError, ValueError, TypeError) as error:
                return 400, json.dumps({"error": {"message": str(error), "type": "BadRequestError"}}).encode()
            return 200, json.dumps(completion).encode()

        async def _completion(self, request: dict[str, Any]) -> dict[str, Any]:
            import os

            from vllm import SamplingParams
            from vllm.renderers import ChatParams
            from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

            if request.get("tools"):
                raise ValueError("a pool with transport ray answers no calls of tools: set its transport to http")
            engine = self._engine
            penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
            drawn = ("temperature", "top_p", "top_k", "min_p", "seed", "n")
            names = (*drawn, *penalties, "max_tokens", "min_tokens", "stop", "ignore_eos")
            fields = engine.model_config.get_diff_sampling_param()  # the model's own, as vLLM's server takes them
            fields |= {name: request[name] for name in names if request.get(name) is not None}
            if request.get("max_completion_tokens"):
                fields["max_tokens"] = request["max_completion_tokens"]
            wanted = request.get("response_format") or {}
            if wanted.get("type") == "json_schema":
                fields["structured_outputs"] = StructuredOutputsParams(json=wanted["json_schema"]["schema"])
            elif wanted.get("type") == "json_object":
                fields["structured_outputs"] = StructuredOutputsParams(json_object=True)
            template = {"add_generation_prompt": True, "continue_final_message": False, "tokenize": False}
            template |= request.get("chat_template_kwargs") or {}
            _, [prompt] = await engine.renderer.render_chat_async(
                [request["messages"]], ChatParams(chat_template_kwargs=template)
            )
            room = engine.model_config.max_model_len - len(prompt["prompt_token_ids"])
            if room < 1:
                raise ValueError(f"the prompt is longer than max_model_len={engine.model_config.max_model_len}")
            fields["max_tokens"] = min(room, fields.get("max_tokens") or room)
            params = SamplingParams(**fields, output_kind=RequestOutputKind.FINAL_ONLY)
            [last] = [output async for output in engine.generate(prompt, params, os.urandom(8).hex())]
            written = sum(len(output.token_ids) for output in last.outputs)
            read = len(last.prompt_token_ids)
            return {
                "object": "chat.completion",
                "model": request["model"],
                "choices": [
                    {
                        "index": output.index,
                        "message": {"role": "assistant", "content": output.text},
                        "finish_reason": output.finish_reason,
                        **({"token_ids": list(output.token_ids)} if request.get("return_token_ids") else {}),
                    }
                    for output in last.outputs
                ],
                "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
            }

    return EngineActor
