"""`LLM.generate` with the default model: prompts, parameters, outputs."""

import asyncio
import json
import math
import threading
from dataclasses import replace
from typing import Any

import pytest

from pageloom import LLM, RequestOutputKind, SamplingParams, StructuredOutputsParams, TextPrompt, TokensPrompt
from pageloom.errors import ContextLengthExceeded, InvalidConfig, InvalidRequest, Unavailable
from pageloom.llm.metrics import Counter, Gauge, Histogram
from pageloom.llm.prompts import PromptType

PROMPT = "The capital of France is"
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def text_of(llm: LLM, prompt: PromptType, params: SamplingParams = GREEDY) -> str:
    (output,) = llm.generate(prompt, params)
    return output.outputs[0].text


def test_every_form_of_a_prompt(llm: LLM):
    (ids,) = llm.tokenize(PROMPT)
    forms: list[PromptType] = [
        PROMPT,
        ids,
        TextPrompt(prompt=PROMPT),
        TokensPrompt(prompt_token_ids=ids),
        TokensPrompt(prompt_token_ids=ids, prompt="shown"),
    ]
    outputs = llm.generate(forms, GREEDY)
    assert [output.prompt for output in outputs] == [PROMPT, None, PROMPT, None, "shown"]
    for output in outputs:
        assert output.prompt_token_ids == ids
        assert output.finished
        (choice,) = output.outputs
        assert choice.text.startswith(" Paris")
        assert (choice.index, choice.finish_reason, choice.stop_reason) == (0, "length", None)
        assert choice.finished()
        assert len(choice.token_ids) == 8
        assert choice.text == llm.get_tokenizer().decode(choice.token_ids)
        assert (choice.logprobs, choice.cumulative_logprob, output.prompt_logprobs) == (None, None, None)
    assert llm.generate([], GREEDY) == []


def test_more_prompts_than_the_queue_holds_come_back_in_order(llm: LLM):
    prompts = [f"{number} and one more is" for number in range(100)]
    params = [SamplingParams(temperature=0.0, max_tokens=1 + number % 7, ignore_eos=True) for number in range(100)]
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [each.max_tokens for each in params]
    assert outputs[41].outputs[0].text == text_of(llm, prompts[41], params[41])


def test_several_choices_and_stop_strings(llm: LLM):
    params = SamplingParams(n=3, temperature=0.0, max_tokens=50, stop=[" 6", "never"])
    (output,) = llm.generate("Count: 1, 2, 3,", params)
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    for choice in output.outputs:
        assert (choice.text, choice.finish_reason, choice.stop_reason) == (" 4, 5,", "stop", " 6")
    included = replace(params, n=1, include_stop_str_in_output=True)
    assert text_of(llm, "Count: 1, 2, 3,", included) == " 4, 5, 6"


def test_stop_tokens_and_no_text(llm: LLM):
    (first,) = llm.generate(PROMPT, GREEDY)
    third = first.outputs[0].token_ids[2]
    params = replace(GREEDY, stop_token_ids=[third], detokenize=False)
    (choice,) = llm.generate(PROMPT, params)[0].outputs
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("", "stop", third)
    assert list(choice.token_ids) == list(first.outputs[0].token_ids[:3])


def test_log_probabilities(llm: LLM):
    (output,) = llm.generate(PROMPT, replace(GREEDY, logprobs=2, prompt_logprobs=1))
    (choice,) = output.outputs
    assert choice.logprobs is not None
    assert choice.cumulative_logprob == pytest.approx(
        sum(entry[token_id].logprob for token_id, entry in zip(choice.token_ids, choice.logprobs, strict=True))
    )
    for token_id, entry in zip(choice.token_ids, choice.logprobs, strict=True):
        # Greedy: the drawn one is the likeliest.
        assert next(iter(entry)) == token_id
        assert [each.rank for each in entry.values()] == [1, 2]
        assert sum(math.exp(each.logprob) for each in entry.values()) <= 1.0001
    assert choice.logprobs[0][choice.token_ids[0]].decoded_token == " Paris"
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    for token_id, scored in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert scored is not None
        assert token_id in scored
        assert any(each.rank == 1 for each in scored.values())


def test_a_form_that_must_be_kept(llm: LLM):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    params = SamplingParams(temperature=0.0, max_tokens=80, structured_outputs=StructuredOutputsParams(json=schema))
    choice = llm.generate("A person as JSON:", params)[0].outputs[0]
    assert choice.finish_reason == "stop"
    assert set(json.loads(choice.text)) == {"name", "age"}
    chosen = StructuredOutputsParams(choice=["red", "green"])
    assert text_of(llm, "Colour:", SamplingParams(structured_outputs=chosen)) in ("red", "green")


def test_a_form_that_proves_too_much_is_named(llm: LLM):
    """Whether a text matches depends on all places of an a among its last hundred characters."""
    regex = StructuredOutputsParams(regex="(?s:.)*a(?s:.){100}b")
    with pytest.raises(InvalidRequest, match=r"^structured_outputs.regex: .*too many states") as caught:
        llm.generate("Once", SamplingParams(temperature=2.0, seed=1, max_tokens=800, structured_outputs=regex))
    assert caught.value.param == "structured_outputs.regex"


def test_times_and_cached_tokens(llm: LLM):
    prompt = "The same long beginning. " * 20
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0
    (output,) = llm.generate(prompt, GREEDY)
    assert output.num_cached_tokens is not None
    assert output.num_cached_tokens >= 32
    metrics = output.metrics
    assert metrics is not None
    assert metrics.num_generation_tokens == 8
    assert metrics.scheduled_ts is not None
    assert metrics.first_token_ts is not None
    assert metrics.last_token_ts is not None
    assert metrics.arrival_time <= metrics.scheduled_ts < metrics.first_token_ts < metrics.last_token_ts
    assert metrics.first_token_latency is not None
    assert metrics.first_token_latency > 0
    assert llm.reset_prefix_cache()
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0


def test_the_same_seed_draws_the_same_texts(llm: LLM, address: str):
    params = SamplingParams(max_tokens=12)
    assert (
        llm.generate(PROMPT, replace(params, seed=7))[0].outputs[0]
        == (llm.generate(["x", PROMPT], replace(params, seed=7))[1].outputs[0])
    )
    texts = []
    for seed in (0, 0, 1):
        with LLM(address=address, seed=seed) as other:
            texts.append([output.outputs[0].text for output in other.generate([PROMPT, PROMPT], params)])
    assert texts[0] == texts[1] != texts[2]
    # Each request draws on its own.
    assert texts[0][0] != texts[0][1]


async def test_inside_of_a_running_event_loop(llm: LLM):
    ticking = asyncio.create_task(asyncio.sleep(0))
    assert text_of(llm, PROMPT).startswith(" Paris")
    await ticking


def test_from_several_threads(llm: LLM):
    texts: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda number=number: texts.update({number: text_of(llm, PROMPT)}))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 4
    assert len(set(texts.values())) == 1


@pytest.mark.parametrize(
    ("prompts", "params", "words"),
    [
        ("", GREEDY, ["prompts", "empty"]),
        (["a", [1, 99_999_999]], GREEDY, ["prompts[1]", "99999999", "49151"]),
        ([{"text": "a"}], GREEDY, ["'text'", "prompt_token_ids"]),
        ([1.5], GREEDY, ["prompts", "list of token ids"]),
        (5, GREEDY, ["prompts", "list of token ids", "not 5"]),
        (["a", "b"], [GREEDY], ["sampling_params", "2 prompts"]),
        ("a", SamplingParams(structured_outputs=StructuredOutputsParams(regex="(")), ["structured_outputs.regex"]),
        ("a", SamplingParams(structured_outputs=StructuredOutputsParams(regex="\ud800")), ["outputs.regex", "UTF-8"]),
        (["a", "\ud800"], GREEDY, ["prompts[1]", "surrogate"]),
        ("a", SamplingParams(bad_words=[""]), ["bad_words"]),
        ("a", SamplingParams(stop_token_ids=[1 << 30]), ["stop_token_ids", "49151"]),
        (b"ab", GREEDY, ["prompts must be", "b'ab'"]),
        (["a", b"ab"], GREEDY, ["prompts[1] must be", "b'ab'"]),
        (["a", "b\ud800"], GREEDY, ["prompts[1]", "lone surrogate at character 1"]),
        ({"prompt": "a", "cache_salt": 5}, GREEDY, ["prompts.cache_salt must be a string, not 5"]),
        ({"prompt": "a", "cache_salt": "\ud800"}, GREEDY, ["prompts.cache_salt", "surrogate"]),
        ({"prompt": 5, "prompt_token_ids": [1]}, GREEDY, ["prompts must be"]),
        ({1: 2}, GREEDY, ["prompts has 1"]),
        ("a", 5, ["sampling_params must be SamplingParams or a list of SamplingParams, not 5"]),
        ("a", {"temperature": 0}, ["sampling_params must be", "'temperature'"]),
        (["a"], [None], ["sampling_params must be", "[None]"]),
    ],
)
def test_what_is_wrong_is_named(llm: LLM, prompts, params, words: list[str]):
    with pytest.raises(InvalidRequest) as refused:
        llm.generate(prompts, params)
    for word in words:
        assert word in refused.value.message


@pytest.mark.parametrize("priority", ["x", 1.5, True, 2**31, [2**40], [None], {}])
def test_a_priority_that_is_none(llm: LLM, priority):
    with pytest.raises(InvalidRequest, match=r"^priority must be"):
        llm.generate("a", GREEDY, priority=priority)


def test_parameters_that_were_changed_are_checked_again(llm: LLM):
    for name in ("bad_words", "structured_outputs", "stop", "ignore_eos"):
        params = SamplingParams(max_tokens=1)
        setattr(params, name, 5)
        with pytest.raises(InvalidRequest, match=f"^{name} must be"):
            llm.generate("a", params)


@pytest.mark.parametrize("texts", [5, None, b"a", ["a", 5], {"a": 1}, "\ud800"])
def test_texts_that_are_none(llm: LLM, texts):
    with pytest.raises(InvalidRequest, match=r"^prompts"):
        llm.tokenize(texts)


def test_what_a_tokenizer_cannot_take(llm: LLM):
    tokenizer = llm.get_tokenizer()
    for text in (5, b"a", "\ud800"):
        with pytest.raises(InvalidRequest, match=r"^text"):
            tokenizer.encode(text)  # type: ignore[arg-type]
    for token_ids in ("x", [1.5], [-1], 1 << 40):
        with pytest.raises(InvalidRequest, match=r"^token_ids"):
            tokenizer.decode(token_ids)  # type: ignore[arg-type]


def test_contexts_end(llm: LLM):
    with pytest.raises(ContextLengthExceeded, match="1024 tokens"):
        llm.generate([[7] * 1024], GREEDY)
    # As in vLLM, the end of the context comes before max_tokens.
    (output,) = llm.generate([[7] * 1022], replace(GREEDY, max_tokens=100, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 2


def test_a_refused_prompt_disturbs_nothing(llm: LLM):
    with pytest.raises(InvalidRequest):
        llm.generate([PROMPT, ""], GREEDY)
    assert text_of(llm, PROMPT).startswith(" Paris")


def test_defaults_may_be_changed(llm: LLM):
    params = llm.get_default_sampling_params()
    assert (params.temperature, params.max_tokens, params.n) == (1.0, 16, 1)
    params.max_tokens = 3
    params.temperature = 0.0
    assert len(llm.generate(PROMPT, params)[0].outputs[0].token_ids) == 3
    params.temperature = -1.0
    with pytest.raises(InvalidRequest, match="temperature"):
        llm.generate(PROMPT, params)


def test_metrics(llm: LLM):
    llm.generate(PROMPT, GREEDY)
    metrics = {metric.name: metric for metric in llm.get_metrics()}
    steps = metrics["pageloom_step_num_seqs"]
    assert isinstance(steps, Histogram)
    assert steps.count > 0
    assert steps.buckets["+Inf"] == steps.count
    assert any(isinstance(metric, Counter) for metric in metrics.values())
    assert any(isinstance(metric, Gauge) for metric in metrics.values())


def test_an_engine_that_runs_elsewhere(llm: LLM, address: str):
    with LLM(address=address) as other:
        assert text_of(other, PROMPT) == text_of(llm, PROMPT)
        with pytest.raises(InvalidConfig, match="metrics-port"):
            other.get_metrics()
    with pytest.raises(RuntimeError, match="shut down"):
        other.generate(PROMPT)
    other.shutdown()
    # Leaving it leaves the engine.
    assert text_of(llm, PROMPT).startswith(" Paris")
    with pytest.raises(Unavailable):
        LLM(address="127.0.0.1:1")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 0}, "n must be"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": "5"}, "max_tokens must be an integer or None, not '5'"),
        ({"temperature": "0"}, "temperature must be a number, not '0'"),
        ({"n": 1.5}, "n must be an integer"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"stop": ""}, "stop"),
        ({"stop": "a", "detokenize": False}, "detokenize"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"structured_outputs": StructuredOutputsParams()}, "exactly one of"),
        ({"structured_outputs": StructuredOutputsParams(regex="a", choice=["b"])}, "regex and choice"),
        ({"structured_outputs": StructuredOutputsParams(choice=[])}, "structured_outputs.choice"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs must be StructuredOutputsParams or None"),
        ({"structured_outputs": StructuredOutputsParams(json={"const": {1}})}, "structured_outputs.json must be"),
        ({"n": True}, "n must be an integer, not True"),
        ({"n": 10**9}, "n must be between 1 and 16384"),
        ({"stop": 5}, "stop must be a string or a list of strings or None, not 5"),
        ({"stop": [5]}, "stop must be"),
        ({"stop": ["a\ud800"]}, "stop is not valid Unicode"),
        ({"bad_words": "abc"}, "bad_words must be a list of strings or None, not 'abc'"),
        ({"bad_words": ["\ud800"]}, "bad_words is not valid Unicode"),
        ({"stop_token_ids": 5}, "stop_token_ids must be a list of integers or None, not 5"),
        ({"allowed_token_ids": "12"}, "allowed_token_ids must be"),
        ({"logit_bias": [1]}, "logit_bias must be a mapping of integers to numbers or None"),
        ({"ignore_eos": "no"}, "ignore_eos must be True or False, not 'no'"),
        ({"detokenize": None}, "detokenize must be True or False"),
        ({"output_kind": 1}, "output_kind must be RequestOutputKind, not 1"),
    ],
)
def test_parameters_are_checked_when_they_are_made(fields, word: str):
    with pytest.raises(InvalidRequest, match=word):
        SamplingParams(**fields)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("max_new_tokens", "did you mean 'max_tokens'"),
        ("guided_regex", "StructuredOutputsParams"),
        ("best_of", "all n answers"),
        ("colour", "unexpected keyword argument 'colour'"),
    ],
)
def test_a_parameter_that_is_none_says_what_may_have_been_meant(name: str, words: str):
    fields: dict[str, Any] = {name: 1}
    with pytest.raises(TypeError, match=words):
        SamplingParams(**fields)


def test_parameters_are_as_in_vllm():
    params = SamplingParams(seed=-1, output_kind=RequestOutputKind.DELTA)
    assert params.sampler().seed is None
    assert params.clone() == params is not params.clone()
    assert SamplingParams().max_tokens == 16
