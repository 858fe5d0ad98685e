"""Thinking and calls beside an answer's content: what they add to the job of a chat."""

from __future__ import annotations

from dataclasses import replace

from gateway.openai.schemas import ChatCompletionRequest
from gateway.requests.job import Job
from gateway.served_model import ServedModel
from pageloom.chats.tool_use import ToolUse, form_with_parts, message_format


def with_parts(
    job: Job, use: ToolUse, body: ChatCompletionRequest, model: ServedModel, prompt: str, eos_token_ids: tuple[int, ...]
) -> Job:
    """The job of an answer that may have thinking and calls beside its content, or must have calls. Raises
    InvalidRequest if a schema cannot be followed, or another form is asked for that has no place for calls."""
    grammar = form_with_parts(use, body, model, prompt)
    if grammar:
        constrained = replace(job.prompts[0], sampling=replace(job.prompts[0].sampling, grammar=grammar))
        field = "tools" if use.offered else job.grammar_field
        # The end of a grammar is the end of the answer, whatever ignore_eos says.
        job = replace(job, prompts=(constrained,), grammar_field=field, eos_token_ids=eos_token_ids)
    # A form that was asked for begins with the answer's first token.
    thinks = not job.grammar or bool(grammar)
    return replace(job, message_format=message_format(use, body, model, prompt, thinks=thinks))
