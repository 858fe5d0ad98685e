"""What did a finished step change? Progress, new tokens, cached blocks, and who has ended."""

from __future__ import annotations

from pageloom.errors import EngineError
from pageloom.outputs import FinishReason, TokensGenerated
from pageloom.plan import StepResult
from scheduler_svc.core.emission import Emission
from scheduler_svc.core.registry import Registry
from scheduler_svc.core.sequence import Binding
from scheduler_svc.core.step import Step
from scheduler_svc.core.worker_group import WorkerGroup


def check_result(step: Step, result: StepResult, vocab_size: int) -> None:
    """Raises EngineError if a result does not answer its plan. Comes before any change."""
    due_slots = step.drawing_slots.difference(result.failures)
    if due_slots != set(result.slots) or not len(due_slots) == len(result.slots) == len(result.token_ids):
        raise EngineError(
            f"step {result.step} brought {len(result.token_ids)} tokens for slots {sorted(result.slots)}; "
            f"one was due for each of {sorted(due_slots)}"
        )
    if result.token_ids and not 0 <= min(result.token_ids) <= max(result.token_ids) < vocab_size:
        raise EngineError(f"step {result.step} brought a token id outside the vocabulary of {vocab_size}")
    if result.failures and not result.failures.keys() <= {binding.slot for binding, _ in step.runs}:
        raise EngineError(f"step {result.step} brought failures of {sorted(result.failures)}; not all of them ran")
    logprob_slots = {binding.slot for binding, _ in step.runs if binding.sequence.wants_logprobs}
    if not logprob_slots & due_slots <= result.logprobs.keys():
        raise EngineError(f"step {result.step} brought no log-probabilities for some of {sorted(logprob_slots)}")


def advance(group: WorkerGroup, step: Step, result: StepResult, registry: Registry, now: float) -> list[Emission]:
    """Makes the progress that the step reserved, and takes back what the choices that ended held."""
    emissions: list[Emission] = []
    tables, block_size, failures = group.tables, group.tables.block_size, result.failures
    num_generated = 0
    drawn = dict(zip(result.slots, result.token_ids, strict=True))
    for binding, num_tokens in step.runs:
        if failures and binding.slot in failures:
            emissions += _fail(group, binding, failures[binding.slot], registry)
            continue
        binding.num_computed_tokens += num_tokens
        if binding.num_computed_tokens // block_size > binding.num_published_blocks:
            tables.publish(binding)
        sequence = binding.sequence
        sequence.num_lost_runs = 0
        token_id = drawn.get(binding.slot)
        # Cancelled during the step: its blocks are as good as any, its token is not wanted.
        if token_id is None or sequence.finished:
            continue
        binding.continues = True
        # Built in place, once for each running choice in each step: this loop bounds the step rate.
        event = TokensGenerated(
            choice_index=sequence.choice_index,
            first_index=len(sequence.token_ids) - sequence.num_prompt_tokens,
            token_ids=(token_id,),
            logprobs=(result.logprobs[binding.slot],) if sequence.wants_logprobs else (),
        )
        emissions.append(Emission(sequence.request_id, event))
        num_generated += 1
        reason = sequence.append(token_id, now)
        if reason is not None:
            group.unbind(binding)
            stop_token_id = token_id if reason is FinishReason.STOP else None
            emissions.append(registry.finish(sequence, reason, stop_token_id=stop_token_id))
    registry.counters.num_generation_tokens += num_generated
    group.finish_step()
    return emissions


def _fail(group: WorkerGroup, binding: Binding, message: str, registry: Registry) -> list[Emission]:
    """Ends one choice whose run failed; the others of the step are not touched."""
    group.tables.distrust(binding)
    if binding.sequence.finished:
        return []
    group.unbind(binding)
    return [registry.finish(binding.sequence, FinishReason.ERROR, error_message=message)]
