"""lm-eval: a task of log-likelihoods and one of greedy text, by the server and by lm-eval's own `hf` backend."""

import math
import os
from pathlib import Path

import lm_eval
import torch
from checks import ARGUMENTS, MODEL, URL, run
from lm_eval.models.huggingface import HFLM
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

TOKENIZER, WEIGHTS, TASKS = ARGUMENTS
os.chdir(TASKS)  # they name their data by its file
CHOICE, ANSWER = "facts_choice", "facts_answer"
# Both compute in float32 and add in another order; a difference of more would be of the weights or the tokens.
TOLERANCE = 5e-3
SERVER = {"model": MODEL, "tokenizer_backend": "huggingface", "tokenizer": TOKENIZER}


def evaluate(model, *tasks, **options):
    """The results, and of each task what was answered to each request, in order."""
    known = TaskManager(include_path=TASKS, include_defaults=False)
    result = lm_eval.simple_evaluate(
        model, tasks=list(tasks), task_manager=known, log_samples=True, bootstrap_iters=0, **options
    )
    responses = {}
    for task in tasks:
        samples = sorted(result["samples"][task], key=lambda sample: sample["doc_id"])
        responses[task] = [answer for sample in samples for (answer,) in sample["resps"]]
    return result["results"], responses


def reference():
    path = Path(WEIGHTS)
    weights = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True),
        local_files_only=True,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    return evaluate(HFLM(pretrained=weights, tokenizer=tokenizer, batch_size=8), CHOICE, ANSWER)


expected_results, expected = reference()


def assert_equal_scores(results, responses):
    assert len(responses[CHOICE]) == 36
    for (value, is_greedy), (other, other_is_greedy) in zip(responses[CHOICE], expected[CHOICE], strict=True):
        assert math.isclose(float(value), float(other), abs_tol=TOLERANCE), (value, other)
        assert str(is_greedy) == str(other_is_greedy)
    assert results[CHOICE] == expected_results[CHOICE]


def check_the_tasks_say_something():
    assert 0.3 < expected_results[CHOICE]["acc,none"] <= 1
    assert any(is_greedy in (True, "True") for _, is_greedy in expected[CHOICE])


def check_scores_and_text_of_completions():
    served = LocalCompletionsAPI(base_url=f"{URL}/v1/completions", num_concurrent=4, max_retries=1, **SERVER)
    results, responses = evaluate(served, CHOICE, ANSWER)
    assert_equal_scores(results, responses)
    assert responses[ANSWER] == expected[ANSWER]
    assert results[ANSWER] == expected_results[ANSWER]


def check_one_batch_of_many_prompts():
    served = LocalCompletionsAPI(base_url=f"{URL}/v1/completions", batch_size=8, max_retries=1, **SERVER)
    assert_equal_scores(*evaluate(served, CHOICE))


def check_tokens_by_the_server():
    served = LocalCompletionsAPI(
        base_url=f"{URL}/v1/completions", model=MODEL, tokenizer_backend="remote", tokenizer=None, max_retries=1
    )
    assert_equal_scores(*evaluate(served, CHOICE))


def check_chat():
    served = LocalChatCompletion(
        base_url=f"{URL}/v1/chat/completions", num_concurrent=4, max_retries=1, model=MODEL, tokenizer_backend=None
    )
    _, responses = evaluate(served, ANSWER, apply_chat_template=True)
    assert len(responses[ANSWER]) == 12
    assert all(responses[ANSWER])


run(globals())
