"""vLLM as its users run it offline, for `bench judge_batch`: `LLM.chat` over all conversations at once.

A program of vLLM's own Python, which has no geofix: `python plain_vllm.py ARGUMENTS.json REQUESTS.jsonl`. It prints the
seconds of the second half of the requests; the first half warms it up.
"""

import json
import sys
import time
from pathlib import Path


def main() -> None:
    from vllm import LLM, SamplingParams

    engine = LLM(**json.loads(Path(sys.argv[1]).read_text()))
    requests = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
    params = SamplingParams(temperature=0, max_tokens=requests[0]["max_tokens"], ignore_eos=True)
    half = len(requests) // 2
    engine.chat([one["messages"] for one in requests[:half]], params, use_tqdm=False)
    began = time.perf_counter()
    found = engine.chat([one["messages"] for one in requests[half:]], params, use_tqdm=False)
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "pictures": len(found), "tokens": len(found[0].outputs[0].token_ids)}))


if __name__ == "__main__":
    main()
