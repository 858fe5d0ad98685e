"""What every rank but the first does: run its part of the model as rank 0 commands."""

from __future__ import annotations

from typing import assert_never

import torch

from worker_svc.kv_cache import KvCache
from worker_svc.models.model import Model
from worker_svc.parallel.channel import CommandReceiver
from worker_svc.parallel.commands import CopyBlocks, Embed, End, Forward, Logits
from worker_svc.parallel.ranks import RankGroup


@torch.inference_mode()
def follow(receiver: CommandReceiver, part: Model, cache: KvCache, ranks: RankGroup) -> None:
    """Returns at the end of the group. Raises GroupLost if another rank is gone."""
    while True:
        command = receiver.receive()
        match command:
            case Forward():
                part.forward(command.token_ids, command.batch, cache.layers, command.output_rows)
            case Logits():
                hidden = ranks.share_from_root(cache.blocks.new_empty(command.num_rows, part.config.hidden_size))
                (part.most_likely if command.most_likely else part.logits)(hidden)
            case Embed():
                part.embed(command.token_ids)
            case CopyBlocks():
                cache.copy(command.source_ids, command.target_ids)
            case End():
                return
            case _:
                assert_never(command)
