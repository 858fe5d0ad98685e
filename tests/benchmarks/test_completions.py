"""Reading recorded responses: no split of the byte stream may change what arrived or when."""

import pytest

from benchmarks.completions import read_completion, sse_events
from benchmarks.errors import BenchmarkError
from benchmarks.http_connection import Exchange
from benchmarks.workloads import CompletionRequest

STREAM = b': ping\r\n\r\ndata: {"a": 1}\r\n\r\ndata: {"b":\ndata: 2}\n\n\ndata:[DONE]\n\n'
EVENTS = [b'{"a": 1}', b'{"b":2}', b"[DONE]"]


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_events_survive_every_split(cut):
    events = list(sse_events([(1.0, STREAM[:cut]), (2.0, STREAM[cut:])]))
    assert [data for _, data in events] == EVENTS
    for (time_s, data), end in zip(events, (b"1}\r\n\r\n", b"2}\n\n", b"[DONE]\n\n"), strict=True):
        completed_by_first_read = STREAM.index(end) + len(end) <= cut
        assert time_s == (1.0 if completed_by_first_read else 2.0), data


def exchange(*events):
    reads = tuple((float(time_s), b"data: " + data + b"\n\n") for time_s, data in events)
    return Exchange(sent_s=0.0, status=200, reads=reads)


def test_the_last_tokens_count_even_when_only_the_usage_chunk_shows_them():
    completion = read_completion(
        exchange(
            (1, b'{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}'),
            (2, b'{"choices": [{"text": ""}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}'),
            (3, b'{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}'),
        ),
        CompletionRequest(prompt_token_ids=(1, 2, 3), num_output_tokens=2),
    )
    assert completion.arrival_s == (1.0, 3.0)


def test_usage_with_the_last_choice_alone_is_no_running_usage():
    completion = read_completion(
        exchange(
            (1, b'{"choices": [{"text": "a"}]}'),
            (2, b'{"choices": [{"text": "b"}]}'),
            (3, b'{"choices": [{"text": ""}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}'),
        ),
        CompletionRequest(prompt_token_ids=(1, 2, 3), num_output_tokens=2),
    )
    assert completion.arrival_s == (1, 2)


def test_without_running_usage_a_token_without_text_still_arrives():
    completion = read_completion(
        exchange(
            (1, b'{"choices": [{"text": ""}], "usage": null}'),
            (2, b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}'),
        ),
        CompletionRequest(prompt_token_ids=(1,), num_output_tokens=1),
    )
    assert completion.arrival_s == (1.0,)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b'{"choices": [{"text": "a"}]}', "has no usage"),
        (b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}', "no chunk with a choice"),
        (b"{", "not JSON"),
        (b'{"choices": [{"text": "a"}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}', "prompt of 9 tokens"),
        (b'{"choices": [{"text": "a"}], "usage": {"completion_tokens": "one"}}', "'one', which is not a count"),
    ],
)
def test_a_stream_that_proves_no_work_is_an_error(event, message):
    with pytest.raises(BenchmarkError, match=message):
        read_completion(exchange((1, event)), CompletionRequest(prompt_token_ids=(1,), num_output_tokens=1))
