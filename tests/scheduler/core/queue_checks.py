"""Does nobody in the queue wait too long? Bounds what may pass a choice that waits for blocks."""

from __future__ import annotations

from collections.abc import Collection

from pageloom.plan import BatchPlan
from pageloom.timeline import WaitReason
from scheduler_svc.core import Scheduler
from tests.scheduler.core.paper_attachment import PaperAttachment, Stream


def check_passing(
    core: Scheduler, attachment: PaperAttachment, plan: BatchPlan, open_streams: Collection[Stream]
) -> None:
    """Who waits for blocks is passed by others with no more blocks than it needs itself.

    For worlds in which order and place are plain: first come, first served, on the only worker there ever was.
    """
    block_size = attachment.hello.cache.block_size
    waiting = [stream for stream in open_streams if stream not in attachment.streams.values()]
    for admission in plan.admissions:
        admitted = attachment.streams[admission.slot]
        admitted.num_passed_blocks = 0
        num_new_blocks = len(admission.block_ids) - admission.num_computed_tokens // block_size
        for stream in waiting:
            if stream.key < admitted.key and _waits_for_blocks(core, stream):
                stream.num_passed_blocks += num_new_blocks
                num_needed_blocks = -(-(stream.num_prompt_tokens + len(stream.token_ids)) // block_size)
                assert stream.num_passed_blocks <= num_needed_blocks, f"{stream.request_id} is passed too often"


def _waits_for_blocks(core: Scheduler, stream: Stream) -> bool:
    timelines = core.timelines(stream.request_id)
    assert timelines is not None
    return timelines[stream.choice_index].waits[-1].reason is WaitReason.BLOCKS
