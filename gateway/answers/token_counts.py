"""How many tokens did a request take? Counted for every chunk of a stream, so shown without a model in between."""

from __future__ import annotations

from typing import NamedTuple

from gateway.openai.answer_schemas import CompletionTokensDetails, PromptTokensDetails, Usage


class TokenCounts(NamedTuple):
    """`cached` are those of the prompt that were not computed again; known at the end. `reasoning` are those of the
    completion that are thinking; None if the model does not think."""

    prompt: int
    completion: int
    cached: int
    reasoning: int | None = None

    @property
    def total(self) -> int:
        return self.prompt + self.completion

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt,
            completion_tokens=self.completion,
            total_tokens=self.total,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self.cached),
            completion_tokens_details=(
                None if self.reasoning is None else CompletionTokensDetails(reasoning_tokens=self.reasoning)
            ),
        )

    def to_json(self) -> bytes:
        """The same as JSON."""
        details = (
            b"" if self.reasoning is None else b',"completion_tokens_details":{"reasoning_tokens":%d}' % self.reasoning
        )
        return (
            b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}%b}'
            % (self.prompt, self.completion, self.total, self.cached, details)
        )
