"""Which part of a prompt is kept?"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.openai.schemas import GenerationRequest
from pageloom.errors import InvalidRequest


def kept_tokens(body: GenerationRequest, token_ids: Sequence[int], most: int) -> Sequence[int]:
    """The prompt cut to `truncate_prompt_tokens`, of which -1 stands for `most`: its end is kept, or with
    `truncation_side` right its beginning."""
    asked = body.truncate_prompt_tokens
    if asked is None:
        return token_ids
    if asked == 0:
        raise InvalidRequest(
            "truncate_prompt_tokens must be at least 1, or -1 for as many as fit", param="truncate_prompt_tokens"
        )
    length = max(most, 1) if asked == -1 else asked
    return token_ids[:length] if body.truncation_side == "right" else token_ids[-length:]
