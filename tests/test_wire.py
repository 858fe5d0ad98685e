"""Every message survives the wire, both ways."""

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pageloom import wire
from pageloom.errors import (
    ContextLengthExceeded,
    DuplicateRequest,
    EngineError,
    InvalidRequest,
    Overloaded,
    PageloomError,
    Unavailable,
)
from pageloom.outputs import ChoiceFinished, FinishReason, GenerateEvent, PromptLogprobs, TokenLogprobs, TokensGenerated
from pageloom.plan import Admission, BatchPlan, CacheInfo, Failure, ModelInfo, StepResult, WorkerHello
from pageloom.policies import Pooling
from pageloom.requests import EngineInfo, GenerateRequest, WorkerInfo
from pageloom.rpc.v1 import common_pb2, engine_pb2
from pageloom.sampling_params import SamplingParams
from pageloom.timeline import Run, Timeline, Wait, WaitReason

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
SMALL = st.integers(0, 2**31 - 1)
UNIT = st.floats(0, 1, width=32)
FLOATS = st.floats(-10, 0, width=32)
FINITE = st.floats(0, 1e6, width=32)
POOLINGS = st.none() | st.sampled_from(Pooling)
REFUSALS = [
    InvalidRequest("a", param="n"), ContextLengthExceeded("b", param="max_tokens"), DuplicateRequest("c"),
    Overloaded("d"), Unavailable("e"), EngineError("f"),
]  # fmt: skip

sampling_params = st.builds(
    SamplingParams,
    temperature=st.floats(0, 4, width=32),
    top_p=UNIT,
    top_k=st.integers(0, 100),
    min_p=UNIT,
    presence_penalty=st.floats(-2, 2, width=32),
    frequency_penalty=st.floats(-2, 2, width=32),
    repetition_penalty=st.floats(0.5, 2, width=32),
    logit_bias=st.dictionaries(SMALL, st.floats(-100, 100, width=32), max_size=3),
    max_tokens=st.none() | st.integers(10, 1000),
    min_tokens=st.integers(0, 10),
    ignore_eos=st.booleans(),
    stop_token_ids=IDS,
    logprobs=st.none() | st.integers(0, 20),
    seed=st.none() | st.integers(0, 2**64 - 1),
    grammar=st.text(max_size=20),
    allowed_token_ids=IDS,
    bad_words=st.lists(IDS.filter(bool), max_size=3).map(tuple),
    prompt_logprobs=st.none() | st.integers(0, 20),
)
logprobs = st.builds(TokenLogprobs, FLOATS, IDS, st.lists(FLOATS, max_size=4).map(tuple))
prompt_logprobs = st.tuples(st.integers(1, 3), st.integers(0, 2)).flatmap(
    lambda shape: st.builds(
        PromptLogprobs,
        first_index=SMALL,
        logprobs=st.tuples(*[FLOATS] * shape[0]),
        ranks=st.tuples(*[SMALL] * shape[0]),
        top_token_ids=st.tuples(*[SMALL] * (shape[0] * shape[1])),
        top_logprobs=st.tuples(*[FLOATS] * (shape[0] * shape[1])),
    )
)
admissions = st.builds(
    Admission,
    slot=SMALL,
    token_ids=IDS,
    num_prompt_tokens=SMALL,
    num_computed_tokens=SMALL,
    block_ids=IDS,
    sampling=sampling_params,
    choice_index=SMALL,
    first_scored_token=SMALL,
    pooling=POOLINGS,
)
plan_columns = {
    field.name: IDS for field in fields(BatchPlan) if field.name not in ("epoch", "step", "snapshot", "admissions")
}
plans = st.builds(
    BatchPlan,
    epoch=st.integers(0, 2**63),
    step=SMALL,
    snapshot=st.booleans(),
    admissions=st.lists(admissions, max_size=2).map(tuple),
    **plan_columns,
)
results = st.builds(
    StepResult,
    epoch=st.integers(0, 2**63),
    step=SMALL,
    slots=IDS,
    token_ids=IDS,
    token_counts=IDS,
    draft_counts=IDS,
    draft_limit=st.none() | SMALL,
    logprobs=st.dictionaries(SMALL, st.lists(logprobs, min_size=1, max_size=3).map(tuple), max_size=3),
    failures=st.dictionaries(SMALL, st.builds(Failure, st.text(max_size=5), st.text(max_size=5)), max_size=3),
    prompt_logprobs=st.dictionaries(SMALL, prompt_logprobs, max_size=2),
    embeddings=st.dictionaries(SMALL, st.binary(max_size=8), max_size=2),
    duration_s=st.integers(0, 10**6).map(lambda microseconds: microseconds / 1e6),
    undrafted_duration_s=st.integers(0, 10**6).map(lambda microseconds: microseconds / 1e6),
)
requests = st.builds(
    GenerateRequest,
    request_id=st.text(min_size=1, max_size=9),
    prompt_token_ids=IDS,
    sampling=sampling_params,
    n=st.integers(1, 9),
    priority=st.integers(-(2**31), 2**31 - 1),
    cache_salt=st.text(max_size=5),
    resume=st.lists(st.tuples(SMALL, IDS), max_size=2).map(tuple),
    tenant=st.text(max_size=5),
    deadline_s=st.none() | FINITE,
    include_timeline=st.booleans(),
    wait_for_tokens=st.booleans(),
    pooling=POOLINGS,
)
SECONDS = st.none() | FINITE
waits = st.builds(
    Wait,
    reason=st.sampled_from(WaitReason),
    start_s=FINITE,
    end_s=SECONDS,
    num_ahead=SMALL,
    behind_request_ids=st.lists(st.text(max_size=3), max_size=2).map(tuple),
    num_missing_blocks=SMALL,
)
runs = st.builds(
    Run,
    worker_id=st.text(max_size=3),
    start_s=FINITE,
    end_s=SECONDS,
    num_cached_tokens=SMALL,
    num_steps=SMALL,
    num_held_steps=SMALL,
    preempted_by=st.text(max_size=3),
    worker_lost=st.booleans(),
)
timelines = st.builds(
    Timeline,
    waits=st.lists(waits, max_size=2).map(tuple),
    runs=st.lists(runs, max_size=2).map(tuple),
    first_token_s=SECONDS,
    finished_s=SECONDS,
)
endings = st.builds(
    ChoiceFinished,
    choice_index=SMALL,
    reason=st.sampled_from(FinishReason),
    num_output_tokens=SMALL,
    num_cached_tokens=SMALL,
    stop_token_id=st.none() | SMALL,
    error_message=st.text(max_size=5),
    error_param=st.text(max_size=5),
    timeline=st.none() | timelines,
    embedding=st.binary(max_size=8),
)
events = (
    endings
    | prompt_logprobs
    | st.builds(
        TokensGenerated, choice_index=SMALL, first_index=SMALL, token_ids=IDS, logprobs=st.lists(logprobs).map(tuple)
    )
)
STREAM = st.integers(0, 2**64 - 1)
NOT_EMPTY = st.lists(SMALL, min_size=1, max_size=3).map(tuple)
plain_tokens = st.builds(wire.StreamTokens, STREAM, SMALL, SMALL, NOT_EMPTY, st.just(()))
scored_tokens = NOT_EMPTY.flatmap(
    lambda ids: st.builds(
        wire.StreamTokens, STREAM, SMALL, SMALL, st.just(ids), st.tuples(*[logprobs] * len(ids))
    )
)  # fmt: skip
first_choices = st.builds(wire.StreamTokens, STREAM, st.just(0), SMALL, st.tuples(SMALL), st.just(()))
MODEL = ModelInfo(
    name="m", digest="d", architecture="llama", vocab_size=9, max_model_len=8, eos_token_ids=(1, 2), dtype="float32",
    weights_bytes=2**40, hidden_size=576, pooling=Pooling.mean,
)  # fmt: skip
CACHE = CacheInfo(block_size=16, num_blocks=7, kv_bytes=2**41)


@given(sampling_params)
def test_sampling(sampling: SamplingParams):
    assert wire.sampling_from_proto(wire.sampling_to_proto(sampling)) == sampling


@given(plans)
def test_plan(plan: BatchPlan):
    assert wire.plan_from_proto(wire.plan_to_proto(plan)) == plan


@given(results)
def test_result(result: StepResult):
    assert wire.result_from_proto(wire.result_to_proto(result)) == result


@given(requests)
def test_request(request: GenerateRequest):
    assert wire.generate_request_from_proto(wire.generate_request_to_proto(request)) == request


@given(events)
def test_event(event: GenerateEvent):
    assert wire.event_from_proto(wire.event_to_proto(event)) == event


@given(
    st.lists(plain_tokens | scored_tokens, max_size=4) | st.lists(first_choices, max_size=4),
    st.lists(st.builds(wire.StreamFinished, STREAM, endings), max_size=2),
    st.lists(st.tuples(STREAM, st.sampled_from(REFUSALS)), max_size=2),
    st.lists(st.builds(wire.StreamPromptLogprobs, STREAM, prompt_logprobs), max_size=2),
)
def test_session_response(
    tokens: list[wire.StreamTokens],
    finished: list[wire.StreamFinished],
    refused: list[tuple[int, PageloomError]],
    scored: list[wire.StreamPromptLogprobs],
):
    refusals = [wire.StreamRefused(stream_id, error) for stream_id, error in refused]
    message = wire.session_response_to_proto(tokens, finished, refusals, scored)
    events = wire.session_response_from_proto(message)
    assert events.prompt_logprobs == scored
    assert events.tokens == tokens
    assert events.finished == finished
    assert [(stream_id, type(e), e.message, e.param) for stream_id, e in events.refused] == [
        (stream_id, type(e), e.message, e.param) for stream_id, e in refused
    ]


@pytest.mark.parametrize(
    "columns",
    [
        {"stream_ids": [1], "first_indexes": [0], "token_ids": [5, 6]},
        {"stream_ids": [1], "first_indexes": [0], "token_ids": []},
        {"stream_ids": [1, 2], "first_indexes": [0], "token_ids": [5, 6]},
        {"stream_ids": [1, 2], "first_indexes": [0, 0], "token_ids": [5, 6], "choice_indexes": [1]},
        {"stream_ids": [1, 2], "first_indexes": [0, 0], "token_ids": [5, 6], "num_tokens": [2]},
        {"stream_ids": [1], "first_indexes": [0], "token_ids": [5], "logprob_entries": [0]},
        {"stream_ids": [1], "first_indexes": [0], "token_ids": [5], "logprob_entries": [1]},
    ],
)
def test_columns_that_do_not_fit_each_other(columns: dict[str, list[int]]):
    with pytest.raises(ValueError, match=r"argument|announced|do not fit"):
        wire.session_response_from_proto(engine_pb2.SessionResponse(**columns))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "columns",
    [
        {"first_index": 1},
        {"first_index": 1, "logprobs": [-1.0], "ranks": []},
        {"first_index": 1, "logprobs": [-1.0, -2.0], "ranks": [1, 2], "top_token_ids": [3], "top_logprobs": [-1.0]},
        {"first_index": 1, "logprobs": [-1.0], "ranks": [1], "top_token_ids": [3], "top_logprobs": []},
    ],
)
def test_scores_of_a_prompt_that_do_not_fit_each_other(columns: dict[str, Any]):
    entry = engine_pb2.StreamPromptLogprobs(stream_id=1, logprobs=common_pb2.PromptLogprobs(**columns))
    with pytest.raises(ValueError, match="do not fit"):
        wire.session_response_from_proto(engine_pb2.SessionResponse(prompt_logprobs=[entry]))


def test_a_step_of_many_requests_costs_few_bytes_each():
    step = [wire.StreamTokens(stream_id, 0, 300, (40_000,), ()) for stream_id in range(10_000, 10_256)]
    assert len(wire.session_response_to_proto(step).SerializeToString()) < 256 * 7.2


def test_hello_and_info():
    hello = WorkerHello(
        worker_id="w", boot_id="b", model=MODEL, cache=CACHE, max_num_seqs=3, max_num_batched_tokens=5
    )  # fmt: skip
    assert wire.hello_from_proto(wire.hello_to_proto(hello)) == hello
    for model in (None, MODEL):
        info = EngineInfo(
            version="1", model=model, num_running=1, num_waiting=2, max_num_seqs=3, max_num_batched_tokens=4,
            workers=(WorkerInfo(worker_id="w", epoch=2**40, cache=CACHE, num_free_blocks=5),), draining=True,
        )  # fmt: skip
        assert wire.engine_info_from_proto(wire.engine_info_to_proto(info)) == info


def test_an_empty_message_means_the_documented_defaults():
    assert wire.sampling_from_proto(common_pb2.SamplingParams()) == SamplingParams()


def test_a_bad_value_on_the_wire_is_refused():
    with pytest.raises(InvalidRequest, match="temperature"):
        wire.sampling_from_proto(common_pb2.SamplingParams(temperature=float("nan")))


def test_a_plan_of_continuing_decodes_is_tiny():
    assert len(wire.plan_to_proto(BatchPlan(epoch=1_800_000_000_000, step=123_456)).SerializeToString()) < 20
