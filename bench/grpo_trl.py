"""TRL's GRPO with vLLM in its own process, for `bench grpo_async`: a program for the Python that has both.

    PYTHON -m bench.grpo_trl FOLDER STEPS NEW_TOKENS

FOLDER holds a processor, `config.json`, and `prompts.json` with the pictures that it names; seconds of every step are
written to `seconds.json` there. A CPU generates with the model itself, in place of vLLM.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

PROMPTS, SIZE = 2, 8  # a step, as in bench.grpo_vllm


def main() -> None:
    folder, steps, new_tokens = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    import pyarrow as pa
    import torch
    from datasets import Dataset, Features, Image, List, Value
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    is_gpu = torch.cuda.is_available()
    weights = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if not any(file.exists() for file in weights):
        torch.manual_seed(0)
        with torch.device("cuda" if is_gpu else "cpu"):
            model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
        model.save_pretrained(folder)
        del model
        if is_gpu:
            torch.cuda.empty_cache()
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)  # ours: it does without torchvision
    told = json.loads((folder / "prompts.json").read_text())
    rows = [
        {"prompt": one["messages"], "images": [{"path": str(folder / name), "bytes": None} for name in one["pictures"]]}
        for one in told
    ]
    messages = List({"role": Value("string"), "content": Value("string")})
    columns = Features({"prompt": messages, "images": List(Image())})
    # With a name of its own: on Python 3.12 datasets cannot hash a table of pyarrow 26.
    data = Dataset(pa.Table.from_pylist(rows, schema=columns.arrow_schema), fingerprint="prompts")
    config = AutoConfig.from_pretrained(folder)
    no_pictures = dict.fromkeys((config.image_token_id, config.video_token_id), -100.0)
    own: dict[str, Any] = {"use_vllm": False}
    if is_gpu:
        own = {
            "use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3,
            "vllm_max_model_length": 16_384, "generation_kwargs": {"logit_bias": no_pictures},
        }  # fmt: skip
    seconds: list[float] = []
    began = [time.monotonic()]

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            began[0] = time.monotonic()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.monotonic() - began[0])
            print(f"   TRL: step of {seconds[-1]:.2f} s", flush=True)

    def drawn(completions: list[Any], **_: Any) -> list[float | None]:
        return [float(len(str(one)) % SIZE) for one in completions]

    trainer = GRPOTrainer(
        model=str(folder), reward_funcs=drawn, train_dataset=data, processing_class=processor, callbacks=[Clock()],
        args=GRPOConfig(
            output_dir=str(folder / "out"), max_steps=steps, num_generations=SIZE, per_device_train_batch_size=SIZE,
            gradient_accumulation_steps=PROMPTS, max_completion_length=new_tokens, beta=0.0, learning_rate=5e-5,
            bf16=is_gpu, use_cpu=not is_gpu, gradient_checkpointing=True, temperature=1.0, save_strategy="no",
            report_to=[], logging_steps=1000, optim="adamw_torch_fused", model_init_kwargs={"dtype": "bfloat16"},
            **own,
        ),
    )  # fmt: skip
    trainer.train()
    (folder / "seconds.json").write_text(json.dumps(seconds))


if __name__ == "__main__":
    main()
