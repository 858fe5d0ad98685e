"""What rank 0 has the other ranks do: one buffer of a fixed size for each command, and more behind it for a large one.

The others keep no slots: a command holds all that a forward pass needs, so that no rank can come to another view of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pageloom_kernels import AttentionBatch

# A step of 64 sequences with contexts of a thousand tokens fits in.
BUFFER_BYTES = 16384
_NUM_HEADER_FIELDS = 10
_HEADER_BYTES = 8 * _NUM_HEADER_FIELDS
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forward:
    """`Model.forward` with these arguments."""

    token_ids: Tensor
    batch: AttentionBatch
    output_rows: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Logits:
    """`Model.logits` or `Model.most_likely`, of as many hidden states, which tensor rank 0 then shares."""

    num_rows: int
    most_likely: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embed:
    """`Model.embed` with this argument."""

    token_ids: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyBlocks:
    """`KvCache.copy`."""

    source_ids: tuple[int, ...]
    target_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class End:
    """Nothing comes after it."""


Command = Forward | Logits | Embed | CopyBlocks | End


class _Kind(IntEnum):
    forward = 0
    logits = 1
    embed = 2
    copy_blocks = 3
    end = 4


def encode(command: Command) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
    """The buffer, and what of the command does not fit in."""
    match command:
        case Forward():
            kind, numbers, arrays = _Kind.forward, *_forward_parts(command)
        case Logits():
            kind, numbers, arrays = _Kind.logits, [command.num_rows, int(command.most_likely)], []
        case Embed():
            kind, numbers, arrays = _Kind.embed, [], [_to_ints(command.token_ids)]
        case CopyBlocks():
            ids = [np.array(block_ids, np.int32) for block_ids in (command.source_ids, command.target_ids)]
            kind, numbers, arrays = _Kind.copy_blocks, [], ids
        case End():
            kind, numbers, arrays = _Kind.end, [], []
    payload = np.concatenate(arrays).view(np.uint8) if arrays else np.zeros(0, np.uint8)
    header = np.zeros(_NUM_HEADER_FIELDS, np.int64)
    header[: 2 + len(numbers)] = [kind, len(payload), *numbers]
    buffer = np.zeros(BUFFER_BYTES, np.uint8)
    buffer[:_HEADER_BYTES] = header.view(np.uint8)
    inside = payload[: BUFFER_BYTES - _HEADER_BYTES]
    buffer[_HEADER_BYTES : _HEADER_BYTES + len(inside)] = inside
    rest = payload[len(inside) :]
    return buffer, rest if len(rest) else None


def num_bytes_beyond(buffer: NDArray[np.uint8]) -> int:
    """How much follows a buffer."""
    payload_bytes = int(buffer[8:16].view(np.int64)[0])
    return max(0, payload_bytes - (BUFFER_BYTES - _HEADER_BYTES))


def decode(buffer: NDArray[np.uint8], rest: NDArray[np.uint8], device: torch.device) -> Command:
    """The command whose tensors are on `device`; they do not share memory with `buffer`."""
    kind, payload_bytes, *numbers = buffer[:_HEADER_BYTES].view(np.int64).tolist()
    payload = np.concatenate((buffer[_HEADER_BYTES:], rest))[:payload_bytes].view(np.int32)
    match _Kind(kind):
        case _Kind.forward:
            return _decode_forward(payload, numbers, device)
        case _Kind.logits:
            return Logits(num_rows=numbers[0], most_likely=bool(numbers[1]))
        case _Kind.embed:
            return Embed(token_ids=torch.from_numpy(payload).to(device).long())
        case _Kind.copy_blocks:
            block_ids, half = payload.tolist(), len(payload) // 2
            return CopyBlocks(source_ids=tuple(block_ids[:half]), target_ids=tuple(block_ids[half:]))
        case _Kind.end:
            return End()


def _forward_parts(command: Forward) -> tuple[list[int], list[Ints]]:
    batch = command.batch
    numbers = [
        len(command.token_ids), len(batch.seq_lens), batch.block_tables.shape[1], len(command.output_rows),
        batch.num_decodes, batch.max_query_len, batch.max_seq_len,
    ]  # fmt: skip
    tensors = (
        command.token_ids, batch.positions, batch.slot_mapping, batch.seq_lens, batch.query_start, batch.block_tables,
        command.output_rows,
    )  # fmt: skip
    # 32 bits hold them all: token ids, and rows of fewer than 2**31 tokens of KV.
    return numbers, [_to_ints(tensor) for tensor in tensors]


def _to_ints(tensor: Tensor) -> Ints:
    return tensor.cpu().numpy().astype(np.int32, copy=False).ravel()


def _decode_forward(payload: Ints, numbers: Sequence[int], device: torch.device) -> Forward:
    num_tokens, num_seqs, num_columns, num_outputs, num_decodes, max_query_len, max_seq_len, *_ = numbers
    sizes = [num_tokens, num_tokens, num_tokens, num_seqs, num_seqs + 1, num_seqs * num_columns, num_outputs]
    parts = torch.split(torch.from_numpy(payload).to(device), sizes)
    token_ids, positions, slot_mapping, seq_lens, query_start, block_tables, output_rows = parts
    return Forward(
        token_ids=token_ids.long(),
        batch=AttentionBatch(
            block_tables=block_tables.view(num_seqs, num_columns),
            seq_lens=seq_lens,
            query_start=query_start,
            num_decodes=num_decodes,
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            positions=positions.long(),
            slot_mapping=slot_mapping.long(),
        ),
        output_rows=output_rows.long(),
    )
