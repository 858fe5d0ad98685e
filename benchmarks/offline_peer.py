"""What does vLLM's own `LLM.generate` take for these prompts? Run by that package's Python, which has nothing of ours.

Standard input is one JSON object: model, max_model_len, and warm_up and requests, each a list of prompt token ids and
number of output tokens. The last line of standard output is seconds and output tokens of the requests.
"""

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    # Its worker writes to standard output too, so the answer goes where that was.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.load(sys.stdin)
    from vllm import LLM, SamplingParams

    llm = LLM(model=asked["model"], max_model_len=asked["max_model_len"], dtype="bfloat16", seed=0)

    def run(requests: list[list[Any]]) -> dict[str, float]:
        prompts = [{"prompt_token_ids": token_ids} for token_ids, _ in requests]
        params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for _, count in requests]
        started_s = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        duration_s = time.perf_counter() - started_s
        return {"duration_s": duration_s, "num_output_tokens": sum(len(each.outputs[0].token_ids) for each in outputs)}

    run(asked["warm_up"])
    print(json.dumps(run(asked["requests"])), file=answers, flush=True)


if __name__ == "__main__":
    main()
