"""A checkpoint that answers: one conversation in, text and token counts out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from jinja2 import TemplateError
from transformers import Qwen2_5_VLForConditionalGeneration

from infra.serve.request import Refused
from tasks.imaging.processor import load_processor


@dataclass(frozen=True)
class Answer:
    """What the model wrote, without its end mark."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


class Model:
    """A loaded checkpoint. One answer at a time: `answer` is not for two threads at once."""

    def __init__(self, folder: Path, threads: int, max_context: int) -> None:
        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(threads)
        on_gpu = torch.cuda.is_available()
        model: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            folder, dtype=torch.bfloat16 if on_gpu else torch.float32
        )
        self._model = model.to("cuda" if on_gpu else "cpu").eval()
        self._processor: Any = load_processor(str(folder))
        self._context = min(max_context, self._model.config.text_config.max_position_embeddings)
        size = self._processor.image_processor.size
        self.min_pixels, self.max_pixels = int(size["shortest_edge"]), int(size["longest_edge"])

    def answer(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        token_limit: int | None,
        temperature: float,
        top_p: float,
        top_k: int,
        seed: int | None,
    ) -> Answer:
        """The model's next turn. The same request with the same seed (or temperature 0) gets the same answer."""
        try:
            inputs = self._processor.apply_chat_template(
                messages,
                tools=tools,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                add_generation_prompt=True,
            ).to(self._model.device)
        except (TemplateError, TypeError) as error:
            raise Refused(400, f"the messages do not fit the chat template: {error}", "invalid_request") from None
        prompt_tokens = int(inputs["input_ids"].shape[1])
        room = self._context - prompt_tokens
        if room < 1:
            raise Refused(
                400, f"the prompt has {prompt_tokens} tokens, the context {self._context}", "context_length_exceeded"
            )
        is_greedy = temperature == 0
        chosen: dict[str, Any] = {} if is_greedy else {"temperature": temperature, "top_p": top_p, "top_k": top_k}
        with torch.inference_mode(), torch.random.fork_rng():
            if seed is not None:
                torch.manual_seed(seed)
            else:
                torch.seed()
            written = self._model.generate(
                **inputs, max_new_tokens=min(room, token_limit or room), do_sample=not is_greedy, **chosen
            )[0, prompt_tokens:]
        ends = set(_listed(self._model.generation_config.eos_token_id))
        ended = bool(len(written)) and int(written[-1]) in ends
        text = self._processor.tokenizer.decode(written, skip_special_tokens=True)
        return Answer(text, "stop" if ended else "length", prompt_tokens, len(written))


def _listed(value: int | list[int] | None) -> list[int]:
    return value if isinstance(value, list) else [] if value is None else [value]
