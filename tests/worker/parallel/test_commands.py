"""What rank 0 sends, as the others get it: whatever its size, and an error when rank 0 is gone."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import pytest
import torch

from pageloom_kernels import AttentionBatch
from worker_svc.parallel.channel import CommandReceiver, CommandSender
from worker_svc.parallel.commands import BUFFER_BYTES, Command, CopyBlocks, Embed, End, Forward, Logits, encode
from worker_svc.parallel.watch import GroupLost

CPU = torch.device("cpu")


def forward(num_seqs: int, tokens_each: int, num_columns: int) -> Forward:
    num_tokens = num_seqs * tokens_each
    return Forward(
        token_ids=torch.arange(num_tokens) + 100_000,
        batch=AttentionBatch(
            block_tables=torch.randint(2**31 - 1, (num_seqs, num_columns), dtype=torch.int32),
            seq_lens=torch.full((num_seqs,), tokens_each + 3, dtype=torch.int32),
            query_start=torch.arange(0, num_tokens + 1, tokens_each, dtype=torch.int32),
            num_decodes=num_seqs if tokens_each == 1 else 0,
            max_query_len=tokens_each,
            max_seq_len=tokens_each + 3,
            positions=torch.arange(num_tokens) + 3,
            slot_mapping=torch.arange(num_tokens) - 1,
        ),
        output_rows=torch.arange(tokens_each - 1, num_tokens, tokens_each),
    )


def assert_same(found: object, sent: object) -> None:
    assert type(found) is type(sent)
    if isinstance(sent, Forward | Embed | AttentionBatch):
        for field in fields(sent):
            assert_same(getattr(found, field.name), getattr(sent, field.name))
    elif isinstance(sent, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert found.dtype == sent.dtype
        assert torch.equal(found, sent)
    else:
        assert found == sent


def test_commands_arrive_in_order():
    commands: list[Command] = [
        forward(1, 1, 1),
        Logits(num_rows=3, most_likely=True),
        forward(7, 300, 64),
        Embed(token_ids=torch.arange(5000) + 100_000),
        CopyBlocks(source_ids=(1, 2, 3), target_ids=(9, 8, 7)),
        forward(64, 1, 256),
        Logits(num_rows=70_000, most_likely=False),
        End(),
    ]
    larger_than_a_buffer = [command for command in commands if encode(command)[1] is not None]
    assert larger_than_a_buffer == [commands[2], commands[3], commands[5]]
    assert all(len(encode(command)[0]) == BUFFER_BYTES for command in commands)
    ours, theirs = socket.socketpair()

    def send_all() -> None:
        sender = CommandSender({1: ours})
        for command in commands:
            sender.send(command, [1])

    with ours, theirs, ThreadPoolExecutor(1) as leader:
        sending = leader.submit(send_all)
        receiver = CommandReceiver(theirs, CPU)
        for command in commands:
            assert_same(receiver.receive(), command)
        sending.result()


def test_rank_0_is_gone():
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(GroupLost):
        CommandReceiver(theirs, CPU).receive()
