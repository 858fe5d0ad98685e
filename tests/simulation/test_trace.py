"""Readers of traces: what they take, and that a bad file's error names the line."""

import gzip
from pathlib import Path

import pytest

from pageloom.errors import InvalidConfig
from scheduler_svc.simulation.trace import EXCERPTS, read_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:15:46.6805900,374,44\r\n"
    "2023-11-16 18:15:50.9951690,396,109"
)
MOONCAKE = (
    '{"timestamp": 1000, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
    '{"timestamp": 500, "input_length": 512, "output_length": 7, "hash_ids": [0]}\n'
)


def write(folder: Path, text: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["azure.csv", "azure.csv.gz"])
def test_azure(tmp_path: Path, name: str):
    trace = read_trace(write(tmp_path, AZURE, name))
    assert trace.name == "azure.csv"
    assert [request[1:3] for request in trace.requests] == [(374, 44), (396, 109)]
    assert [request.arrival_s for request in trace.requests] == pytest.approx([0, 4.314579])


@pytest.mark.parametrize("name", ["mooncake.jsonl", "mooncake.jsonl.gz"])
def test_mooncake_in_the_order_of_arrival(tmp_path: Path, name: str):
    trace = read_trace(write(tmp_path, MOONCAKE, name))
    assert [tuple(request) for request in trace.requests] == [(0.0, 512, 7, (0,), ""), (0.5, 600, 5, (0, 1), "")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("time,in,out\n", "line 1: neither the header TIMESTAMP,ContextTokens,GeneratedTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no requests"),
        (AZURE + "\n2023-11-16 18:15:51,7", "line 4: 2 cells where 3 are due"),
        (AZURE + "\n2023-11-16 18:15:51,7,x", "line 4: invalid literal"),
        (AZURE + "\nyesterday,7,7", "line 4: Invalid isoformat"),
        (AZURE + "\n2023-11-16 18:15:51,0,7", "line 4: 0 prompt and 7 output tokens"),
        (MOONCAKE + '{"timestamp": 1}', "line 3: 'hash_ids' is missing"),
        (MOONCAKE + "{", "line 3: Expecting"),
        (MOONCAKE + "[1]", "line 3: it is not a JSON object"),
        (MOONCAKE + MOONCAKE.replace("600", "1025"), "line 3: input_length 1025 is more than its 2 hash_ids"),
        (MOONCAKE + MOONCAKE.replace("[0, 1]", '["a"]'), "line 3: hash_ids must be whole numbers"),
        (MOONCAKE + MOONCAKE.replace("600", "null"), "line 3: "),
        (AZURE + "\n2023-11-16 18:15:51,99999999999,7", "line 4: 99999999999 prompt and 7 output tokens"),
        (AZURE + "\n2023-11-16 18:15:51,7,99999999999", "both must be at least 1 and at most 16777216"),
        (MOONCAKE + MOONCAKE.replace("[0, 1]", "[0, 123456789]"), "from 0 to 16777215"),
        (MOONCAKE + MOONCAKE.replace('"timestamp": ', '"timestamp": 1e999, "was": '), "a time must be finite"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, message: str):
    path = write(tmp_path, text)
    with pytest.raises(InvalidConfig) as caught:
        read_trace(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_trace_that_is_not_there(tmp_path: Path):
    with pytest.raises(
        InvalidConfig, match="neither a file nor one of azure-conv-excerpt, mooncake-conv-excerpt, share"
    ):
        read_trace(tmp_path / "nothing.csv")


def test_a_file_that_is_no_text_and_one_that_is_no_gzip(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "b.gz").write_bytes(b"plain")
    for name in ("a.csv", "b.gz"):
        with pytest.raises(InvalidConfig, match="cannot be read"):
            read_trace(tmp_path / name)


def test_the_excerpts():
    azure, mooncake = (read_trace(path) for path in EXCERPTS.values())
    assert (len(azure.requests), len(mooncake.requests)) == (400, 200)
    assert sum(path.stat().st_size for path in EXCERPTS.values()) < 60_000
