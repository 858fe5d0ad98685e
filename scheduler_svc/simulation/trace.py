"""When do requests come, how long are they, and what do they share? Readers of public traces."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pageloom.errors import InvalidConfig

# Tokens that one hash id of a Mooncake trace stands for.
MOONCAKE_BLOCK_LEN = 512
# Beyond these it is no trace of requests, and the simulation would end for want of memory or time.
MAX_LENGTH = 1 << 24
MAX_HASH_ID = (1 << 24) - 1
MAX_SPAN_S = 1e7
_AZURE_HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_DATA = Path(__file__).parent / "data"
# Excerpts that come with the package; data/README.md names their sources and licences.
EXCERPTS = {
    "azure-conv-excerpt": _DATA / "azure_conv_excerpt.csv",
    "mooncake-conv-excerpt": _DATA / "mooncake_conversation_excerpt.jsonl",
}


class TraceRequest(NamedTuple):
    """Arrival in seconds after the trace's start, lengths in tokens.

    Requests whose leading `hash_ids` are equal share that many blocks of `Trace.hash_block_len` prompt tokens; without
    any, a request shares nothing.
    """

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: tuple[int, ...] = ()
    tenant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in the order of their arrival."""

    name: str
    requests: tuple[TraceRequest, ...]
    hash_block_len: int = MOONCAKE_BLOCK_LEN

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].arrival_s - self.requests[0].arrival_s


def read_trace(path: Path) -> Trace:
    """Reads an Azure LLM inference trace (CSV) or a Mooncake trace (JSON lines), also compressed with gzip.

    Raises InvalidConfig that names the file and the line.
    """
    lines = _lines(path)
    if not lines:
        raise InvalidConfig(f"{path} is empty")
    if lines[0].lstrip().startswith("{"):
        rows = _parsed(path, lines, 1, _mooncake_request)
    elif [cell.strip() for cell in lines[0].split(",")] == _AZURE_HEADER:
        rows = _parsed(path, lines[1:], 2, _azure_request)
    else:
        raise InvalidConfig(
            f"{path}, line 1: neither the header {','.join(_AZURE_HEADER)} of an Azure trace nor a JSON object of a "
            f"Mooncake trace"
        )
    requests = sorted(rows, key=lambda request: request.arrival_s)
    if not requests:
        raise InvalidConfig(f"{path} has no requests")
    start_s = requests[0].arrival_s
    return Trace(
        name=path.name.removesuffix(".gz"),
        requests=tuple([request._replace(arrival_s=request.arrival_s - start_s) for request in requests]),
    )


def _lines(path: Path) -> list[str]:
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        return io.StringIO(content.decode(), newline=None).read().splitlines()
    except FileNotFoundError:
        known = ", ".join((*EXCERPTS, "sharegpt", "alpaca"))
        raise InvalidConfig(f"trace {str(path)!r} is neither a file nor one of {known}") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"trace {str(path)!r} cannot be read: {error}") from None


def _parsed(
    path: Path, lines: list[str], first_line: int, parse: Callable[[str], TraceRequest]
) -> Iterator[TraceRequest]:
    for number, line in enumerate(lines, first_line):
        if not line.strip():
            continue
        try:
            request = parse(line)
            _check(request)
        except (ValueError, KeyError, TypeError) as error:
            reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise InvalidConfig(f"{path}, line {number}: {reason}") from None
        yield request


def _azure_request(line: str) -> TraceRequest:
    cells = next(csv.reader([line]))
    if len(cells) != len(_AZURE_HEADER):
        raise ValueError(f"{len(cells)} cells where {len(_AZURE_HEADER)} are due")
    return TraceRequest(
        arrival_s=datetime.fromisoformat(cells[0].strip()).timestamp(),
        num_prompt_tokens=int(cells[1]),
        num_output_tokens=int(cells[2]),
    )


def _mooncake_request(line: str) -> TraceRequest:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    hash_ids = tuple(row["hash_ids"])
    if not all(isinstance(hash_id, int) and 0 <= hash_id <= MAX_HASH_ID for hash_id in hash_ids):
        raise ValueError(f"hash_ids must be whole numbers from 0 to {MAX_HASH_ID}")
    request = TraceRequest(
        arrival_s=float(row["timestamp"]) / 1000,
        num_prompt_tokens=int(row["input_length"]),
        num_output_tokens=int(row["output_length"]),
        hash_ids=hash_ids,
    )
    if request.num_prompt_tokens > len(hash_ids) * MOONCAKE_BLOCK_LEN:
        raise ValueError(
            f"input_length {request.num_prompt_tokens} is more than its {len(hash_ids)} hash_ids of "
            f"{MOONCAKE_BLOCK_LEN} tokens hold"
        )
    return request


def _check(request: TraceRequest) -> None:
    if not math.isfinite(request.arrival_s):
        raise ValueError(f"it arrives at {request.arrival_s} s; a time must be finite")
    if not (1 <= request.num_prompt_tokens <= MAX_LENGTH and 1 <= request.num_output_tokens <= MAX_LENGTH):
        raise ValueError(
            f"{request.num_prompt_tokens} prompt and {request.num_output_tokens} output tokens; both must be at least "
            f"1 and at most {MAX_LENGTH}"
        )
