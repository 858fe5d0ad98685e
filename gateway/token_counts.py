"""How many tokens did a request take? Counted for every chunk of a stream, so shown without a model in between."""

from __future__ import annotations

from typing import NamedTuple

from gateway.schemas import PromptTokensDetails, Usage


class TokenCounts(NamedTuple):
    """`cached` are those of the prompt that were not computed again; known at the end."""

    prompt: int
    completion: int
    cached: int

    @property
    def total(self) -> int:
        return self.prompt + self.completion

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt,
            completion_tokens=self.completion,
            total_tokens=self.total,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self.cached),
        )

    def to_json(self) -> bytes:
        """The same as JSON."""
        return (
            b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}'
            % (self.prompt, self.completion, self.total, self.cached)
        )
