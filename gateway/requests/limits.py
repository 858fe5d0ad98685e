"""Is any part of a request too large? Asked of the parsed body, before it is validated: for each part it takes
as long as looking at its length. Types and lower bounds are the request models' business."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pageloom.errors import InvalidRequest
from pageloom.request_limits import RequestLimits


@dataclass(frozen=True, slots=True)
class Bound:
    """`measure` gives the number that the limit bounds, or None if the field's value is of another type;
    `keyword` is JSON Schema's for it."""

    field: str
    limit: str
    measure: Callable[[Any], int | None]
    unit: str
    keyword: str


def _num_items(value: Any) -> int | None:
    return len(value) if isinstance(value, list | dict) else None


def _num_strings(value: Any) -> int | None:
    return 1 if isinstance(value, str) else _num_items(value)


def _longest(value: Any) -> int | None:
    if isinstance(value, str):
        return len(value)
    return max((len(item) for item in value if isinstance(item, str)), default=0) if isinstance(value, list) else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _num_prompts(prompt: Any) -> int | None:
    # A list of ids is one prompt; it is bounded by the context.
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else None


def _num_inputs(value: Any) -> int | None:
    is_several = isinstance(value, list) and value and isinstance(value[0], str | list)
    return len(value) if is_several else None


def _num_input_items(value: Any) -> int | None:
    # Texts are no items of a conversation.
    return len(value) if isinstance(value, list) and value and isinstance(value[0], dict) else None


# The counts come before what is measured item by item.
BOUNDS = (
    Bound("messages", "max_messages", _num_items, "messages", "maxItems"),
    Bound("input", "max_messages", _num_input_items, "items", "maxItems"),
    Bound("input", "max_inputs", _num_inputs, "inputs", "maxItems"),
    Bound("prompt", "max_prompts", _num_prompts, "prompts", "maxItems"),
    Bound("n", "max_choices", _number, "", "maximum"),
    Bound("best_of", "max_choices", _number, "", "maximum"),
    Bound("stop", "max_stop_strings", _num_strings, "strings", "maxItems"),
    Bound("stop", "max_stop_chars", _longest, "characters", "maxLength"),
    Bound("stop_sequences", "max_stop_strings", _num_strings, "strings", "maxItems"),
    Bound("stop_sequences", "max_stop_chars", _longest, "characters", "maxLength"),
    Bound("stop_token_ids", "max_stop_token_ids", _num_items, "ids", "maxItems"),
    Bound("logit_bias", "max_logit_bias", _num_items, "entries", "maxProperties"),
    Bound("bad_words", "max_bad_words", _num_items, "strings", "maxItems"),
    Bound("bad_words", "max_bad_word_chars", _longest, "characters", "maxLength"),
    Bound("allowed_token_ids", "max_allowed_token_ids", _num_items, "ids", "maxItems"),
    Bound("tools", "max_tools", _num_items, "tools", "maxItems"),
    Bound("metadata", "max_metadata", _num_items, "entries", "maxProperties"),
    Bound("chat_template_kwargs", "max_template_variables", _num_items, "entries", "maxProperties"),
    Bound("logprobs", "max_logprobs", _number, "", "maximum"),
    Bound("top_logprobs", "max_logprobs", _number, "", "maximum"),
    Bound("prompt_logprobs", "max_prompt_logprobs", _number, "", "maximum"),
)


def check_limits(body: Mapping[str, Any], limits: RequestLimits) -> None:
    """Raises InvalidRequest, naming the first field that is too large."""
    for bound in BOUNDS:
        size, most = bound.measure(body.get(bound.field)), getattr(limits, bound.limit)
        if size is None or size <= most:
            continue
        if bound.keyword == "maximum":
            raise InvalidRequest(f"{bound.field} is {size}; at most {most} is accepted", param=bound.field)
        of_item = "has a string of" if bound.keyword == "maxLength" else "has"
        raise InvalidRequest(
            f"{bound.field} {of_item} {size} {bound.unit}; at most {most} are accepted", param=bound.field
        )
    _check_choices_in_all(body, limits.max_choices_in_all)


def _check_choices_in_all(body: Mapping[str, Any], most: int) -> None:
    num_prompts = _num_prompts(body.get("prompt")) or 1
    if num_prompts > most:
        raise InvalidRequest(f"prompt has {num_prompts} prompts; at most {most} are accepted", param="prompt")
    for field in ("n", "best_of"):
        num_choices = num_prompts * (_number(body.get(field)) or 1)
        if num_choices > most:
            raise InvalidRequest(
                f"{field} times the number of prompts is {num_choices}; at most {most} are accepted", param=field
            )
