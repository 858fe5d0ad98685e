"""The text of one choice while its tokens come, and where a stop string or token ends it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pageloom.detokenizer import Detokenizer, StopMatcher, StopStrings
from pageloom.tokenizer import Tokenizer


class ChoiceText:
    """`num_tokens` were pushed, whose text has `num_chars`. The text of a stop token is shown only with
    `include_stop`; stop strings are not looked for among the first `min_tokens`."""

    __slots__ = ("_detokenizer", "_include_stop", "_matcher", "_min_tokens", "_stop_ids", "num_chars", "num_tokens")

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: StopStrings,
        *,
        prompt_token_ids: Sequence[int],
        skipped_ids: frozenset[int],
        stop_token_ids: Collection[int],
        include_stop: bool,
        min_tokens: int,
    ) -> None:
        self._detokenizer = Detokenizer(
            tokenizer.token_bytes, skipped_ids=skipped_ids, prompt_token_ids=prompt_token_ids
        )
        self._matcher = StopMatcher(stops, include_match=include_stop)
        self._stop_ids = stop_token_ids
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self.num_tokens = 0
        self.num_chars = 0

    @property
    def matched(self) -> str | None:
        """The stop string that has ended the text."""
        return self._matcher.matched

    def push(self, token_id: int) -> str:
        """The text that is certain to be output once this token has come."""
        self.num_tokens += 1
        # The sampler cannot draw a stop token before min_tokens, so a drawn one ends the choice.
        if token_id in self._stop_ids and not self._include_stop:
            return ""
        text = self._detokenizer.push(token_id)
        self.num_chars += len(text)
        return text if self.num_tokens <= self._min_tokens else self._matcher.push(text)

    def finish(self) -> str:
        """What was held back, once all tokens have come; half a character may complete a stop string."""
        text = self._matcher.push(self._detokenizer.finish())
        return text if self._matcher.matched is not None else text + self._matcher.finish()
