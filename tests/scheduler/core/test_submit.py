"""What is accepted, what is refused, and with which words."""

from dataclasses import replace

import pytest

from pageloom.errors import ContextLengthExceeded, DuplicateRequest, InvalidRequest, Overloaded, Unavailable
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_GRAMMAR_BYTES,
    SamplingParams,
)
from scheduler_svc.core import Scheduler, invariants
from tests.scheduler.core.builders import make_limits, make_request
from tests.support.paper_model import PAPER_EOS_TOKEN_ID, PAPER_MODEL, paper_hello


@pytest.fixture
def scheduler() -> Scheduler:
    """Context 128; KV memory for 400 tokens; 10 choices may wait."""
    scheduler = Scheduler(make_limits(max_num_queued_seqs=10))
    scheduler.attach(paper_hello("a", block_size=4, num_blocks=100), 1, 0.0)
    return scheduler


def refusal(scheduler: Scheduler, request: GenerateRequest) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        scheduler.submit(request, 0.0)
    invariants.check(scheduler)
    assert scheduler.stats().num_waiting == 0
    return caught.value


@pytest.mark.parametrize(
    ("request_", "param", "says"),
    [
        (make_request(prompt=()), "prompt_token_ids", "at least one token"),
        (make_request(prompt=(5, 40)), "prompt_token_ids", "token id 40; the model accepts 0 to 39"),
        (make_request(prompt=(5, -1)), "prompt_token_ids", "token id -1"),
        (make_request(n=0), "n", "between 1 and 10, not 0"),
        (make_request(n=-3), "n", "not -3"),
        (make_request(n=11), "n", "not 11"),
        (make_request(stop_token_ids=(40,)), "stop_token_ids", "token id 40"),
        (make_request(resume=((1, (5,)),)), "resume", "choice 1 but n is 1"),
        (make_request(resume=((-1, (5,)),)), "resume", "choice -1"),
        (make_request(resume=((0, (5,)), (0, (6,)))), "resume", "choice 0 twice"),
        (make_request(resume=((0, (40,)),)), "resume", "token id 40"),
        (make_request(max_tokens=2, resume=((0, (5, 6)),)), "resume", "choice 0 already"),
        (make_request(ignore_eos=False, resume=((0, (PAPER_EOS_TOKEN_ID,)),)), "resume", "choice 0 already"),
        (make_request(stop_token_ids=(9,), resume=((0, (5, 9)),)), "resume", "choice 0 already"),
    ],
)
def test_bad_fields_are_named(scheduler: Scheduler, request_: GenerateRequest, param: str, says: str):
    error = refusal(scheduler, request_)
    assert error.param == param
    assert says in error.message


def test_logit_bias_outside_the_vocabulary(scheduler: Scheduler):
    sampling = SamplingParams(seed=0, logit_bias={40: 1.0})
    error = refusal(scheduler, GenerateRequest(request_id="r", prompt_token_ids=(5,), sampling=sampling))
    assert error.param == "logit_bias"


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param"),
    [(128, None, "prompt_token_ids"), (200, 1, "prompt_token_ids"), (100, 29, "max_tokens")],
)
def test_longer_than_the_context(scheduler: Scheduler, prompt: int, max_tokens: int | None, param: str):
    error = refusal(scheduler, make_request(prompt=prompt, max_tokens=max_tokens))
    assert isinstance(error, ContextLengthExceeded)
    assert "maximum context length is 128 tokens" in error.message
    assert error.param == param


def test_exactly_the_context_fits(scheduler: Scheduler):
    scheduler.submit(make_request(prompt=100, max_tokens=28), 0.0)


def test_larger_than_the_whole_memory_is_refused_at_once():
    scheduler = Scheduler(make_limits())
    scheduler.attach(paper_hello("a", block_size=4, num_blocks=5), 1, 0.0)
    error = refusal(scheduler, make_request(prompt=10, max_tokens=12))
    assert isinstance(error, ContextLengthExceeded)
    assert "KV memory takes at most 21" in error.message
    scheduler.submit(make_request(prompt=10, max_tokens=11), 0.0)


def test_the_largest_worker_decides_what_fits():
    scheduler = Scheduler(make_limits())
    scheduler.attach(paper_hello("a", block_size=4, num_blocks=5), 1, 0.0)
    scheduler.attach(paper_hello("b", block_size=8, num_blocks=5), 2, 0.0)
    scheduler.submit(make_request(prompt=30, max_tokens=11), 0.0)
    assert scheduler.plan("a", 0.0) is None
    assert scheduler.plan("b", 0.0) is not None


@pytest.mark.parametrize(("num_blocks", "max_tokens"), [(100, 118), (5, 11)], ids=["context", "memory"])
def test_without_max_tokens_as_many_as_fit(num_blocks: int, max_tokens: int):
    scheduler = Scheduler(make_limits())
    scheduler.attach(paper_hello("a", block_size=4, num_blocks=num_blocks), 1, 0.0)
    scheduler.submit(make_request(prompt=10, max_tokens=None), 0.0)
    plan = scheduler.plan("a", 0.0)
    assert plan is not None
    assert plan.admissions[0].sampling.max_tokens == max_tokens


def test_min_tokens_beyond_what_fits(scheduler: Scheduler):
    error = refusal(scheduler, make_request(prompt=100, max_tokens=None, min_tokens=50))
    assert error.param == "min_tokens"


def test_a_resumed_stop_token_before_min_tokens_was_not_meant_as_one(scheduler: Scheduler):
    scheduler.submit(make_request(stop_token_ids=(9,), min_tokens=2, resume=((0, (9,)),)), 0.0)


def test_the_id_of_an_open_request_is_taken_and_then_free_again(scheduler: Scheduler):
    scheduler.submit(make_request("r"), 0.0)
    with pytest.raises(DuplicateRequest, match="'r' is still running"):
        scheduler.submit(make_request("r"), 0.0)
    scheduler.cancel("r", now=0.0)
    scheduler.submit(make_request("r"), 0.0)


def test_the_queue_takes_all_choices_or_none(scheduler: Scheduler):
    scheduler.submit(make_request("one", n=8), 0.0)
    with pytest.raises(Overloaded, match="8 choices wait already; at most 10 may wait"):
        scheduler.submit(make_request("two", n=3), 0.0)
    assert scheduler.stats().num_waiting == 8
    scheduler.submit(make_request("two", n=2), 0.0)


def test_before_any_worker_there_is_no_model():
    scheduler = Scheduler(make_limits())
    assert scheduler.model is None
    with pytest.raises(Unavailable, match="no worker has attached yet"):
        scheduler.submit(make_request(), 0.0)


def test_while_the_worker_is_away_requests_wait_for_it(scheduler: Scheduler):
    scheduler.abandon("a", 0.0)
    scheduler.submit(make_request(), 0.0)
    assert scheduler.stats().num_waiting == 1
    assert scheduler.model == PAPER_MODEL


def test_a_grammar_needs_an_end_of_sequence_token():
    scheduler = Scheduler(make_limits())
    scheduler.attach(paper_hello("a", model=replace(PAPER_MODEL, eos_token_ids=())), 1, 0.0)
    sampling = SamplingParams(seed=0, grammar="{}")
    error = refusal(scheduler, GenerateRequest(request_id="r", prompt_token_ids=(5,), sampling=sampling))
    assert error.param == "grammar"


@pytest.mark.parametrize("field", ["allowed_token_ids", "bad_words"])
def test_constraints_outside_the_vocabulary(scheduler: Scheduler, field: str):
    for token_id, is_known in ((-1, False), (39, True), (40, False)):
        plain = SamplingParams(seed=0)
        if field == "allowed_token_ids":
            sampling = replace(plain, allowed_token_ids=(token_id,))
        else:
            sampling = replace(plain, bad_words=((3, token_id),))
        request = GenerateRequest(request_id=f"r{token_id}", prompt_token_ids=(5,), sampling=sampling)
        if is_known:
            scheduler.submit(request, 0.0)
        else:
            with pytest.raises(InvalidRequest, match=f"{field} contains token id {token_id}"):
                scheduler.submit(request, 0.0)


@pytest.mark.parametrize(
    ("field", "most", "beyond"),
    [
        ("grammar", "x" * MAX_GRAMMAR_BYTES, "x" * MAX_GRAMMAR_BYTES + "x"),
        ("grammar", "é" * (MAX_GRAMMAR_BYTES // 2), "é" * (MAX_GRAMMAR_BYTES // 2) + "x"),
        ("grammar", "\U0001f642", "\ud83d"),
        ("allowed_token_ids", (1,) * MAX_ALLOWED_TOKEN_IDS, (1,) * (MAX_ALLOWED_TOKEN_IDS + 1)),
        ("bad_words", ((1,),) * MAX_BAD_WORDS, ((1,),) * (MAX_BAD_WORDS + 1)),
        ("bad_words", ((1,) * MAX_BAD_WORD_TOKENS,), ((1,) * MAX_BAD_WORD_TOKENS, (1,))),
        ("bad_words", ((1,),), ((1,), ())),
    ],
)
def test_bounds_of_constraints(field: str, most: object, beyond: object):
    SamplingParams(**{field: most})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=field) as caught:
        SamplingParams(**{field: beyond})  # type: ignore[arg-type]
    assert caught.value.param == field
