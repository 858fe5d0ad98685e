"""The text or the ids of a prompt -> its tokens, within the context and with room for the output. Tokenizing a long one
takes a while, so callers run it in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.openai.schemas import GenerationRequest
from gateway.requests.job import Prompt
from gateway.served_model import ServedModel
from pageloom.errors import ContextLengthExceeded, InvalidRequest
from pageloom.plan import ModelInfo
from pageloom.sampling_params import SamplingParams, check_token_ids

# A second or two of a thread.
MAX_CUT_CHARS = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLimit:
    """How many tokens were asked for and in which field; otherwise a default, which gives way to the
    end of the context. Without either, the context is the limit."""

    asked: int | None
    default: int | None = None
    field: str = "max_tokens"

    def within(self, room: int) -> int:
        """Raises InvalidRequest unless it is at least 1. The caller checks that it fits."""
        if self.asked is None:
            return room if self.default is None else min(self.default, room)
        if self.asked < 1:
            raise InvalidRequest(f"{self.field} must be at least 1, not {self.asked}", param=self.field)
        return self.asked

    def most_in_prompt(self, context_len: int) -> int:
        """The tokens of a prompt that leave room for the output."""
        return context_len - (self.asked or self.default or 1)


def encode(
    text: str,
    model: ServedModel,
    info: ModelInfo | None,
    param: str,
    *,
    add_special_tokens: bool,
    will_be_cut: bool = False,
) -> list[int]:
    """Token ids. A text that no number of tokens within the context can hold is not even tokenized. One that
    `will_be_cut` may be longer, but not by any length: its last tokens are known only once all before them are."""
    most = 0 if info is None else info.max_model_len * model.tokenizer.longest_token_len
    if info is not None and not will_be_cut and len(text) > most:
        raise _too_long(info, f"the prompt has {len(text)} characters", param)
    if len(text) > max(most, MAX_CUT_CHARS):
        raise InvalidRequest(
            f"{param} makes a text of {len(text)} characters; at most {max(most, MAX_CUT_CHARS)} are tokenized",
            param=param,
        )
    # What `render_messages` made has marks.
    encode_text = model.tokenizer.encode_prompt if param == "messages" else model.tokenizer.encode
    return encode_text(text, add_special_tokens=add_special_tokens)


def kept_tokens(body: GenerationRequest, token_ids: Sequence[int], most: int) -> Sequence[int]:
    """The prompt cut to `truncate_prompt_tokens`, of which -1 stands for `most`: its end is kept, or with
    `truncation_side` right its beginning. Raises InvalidRequest."""
    asked = body.truncate_prompt_tokens
    if asked is None:
        return token_ids
    if asked == 0:
        raise InvalidRequest(
            "truncate_prompt_tokens must be at least 1, or -1 for as many as fit", param="truncate_prompt_tokens"
        )
    length = max(most, 1) if asked == -1 else asked
    return token_ids[:length] if body.truncation_side == "right" else token_ids[-length:]


def prompt_within(
    token_ids: Sequence[int], sampling: SamplingParams, limit: TokenLimit, info: ModelInfo, param: str
) -> Prompt:
    """The prompt and how much may follow it. Raises InvalidRequest or ContextLengthExceeded."""
    if not token_ids:
        raise InvalidRequest(f"{param} is empty: it makes no tokens", param=param)
    check_token_ids(param, list(token_ids), info.vocab_size)
    room = info.max_model_len - len(token_ids)
    if room < 1:
        raise _too_long(info, f"the prompt has {len(token_ids)} tokens and the output needs one", param)
    max_tokens = limit.within(room)
    if max_tokens > room:
        reason = f"you asked for {len(token_ids)} in the prompt and {max_tokens} in the output"
        raise _too_long(info, reason, limit.field)
    return Prompt(token_ids=tuple(token_ids), sampling=replace(sampling, max_tokens=max_tokens))


def _too_long(info: ModelInfo, reason: str, param: str) -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"This model's maximum context length is {info.max_model_len} tokens. However, {reason}.", param=param
    )
