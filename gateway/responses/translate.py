"""A response's request and its conversation -> what is asked of the engine; with `truncation` auto, as much of the
conversation as fits. Rendering and tokenizing take a while, so callers run it in a thread."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.requests.job import Job
from gateway.requests.terms import Terms
from gateway.requests.translate import translate_chat
from gateway.requests.unserved_fields import UNSERVED_IN_RESPONSES, refuse_unserved
from gateway.responses.conversion import to_chat
from gateway.responses.schemas import INCLUDABLE, InputItem, ResponseRequest
from gateway.served_model import ServedModel
from pageloom.errors import ContextLengthExceeded, InvalidRequest
from pageloom.plan import ModelInfo


def translate_response(
    conversation: Sequence[InputItem], body: ResponseRequest, terms: Terms, model: ServedModel, info: ModelInfo
) -> Job:
    """Raises what `translate_chat` raises, in words of a chat request, and InvalidRequest for what is not served."""
    refuse_unserved(body, UNSERVED_IN_RESPONSES)
    _check_include(body.include or ())

    def job_of(items: Sequence[InputItem]) -> Job:
        return translate_chat(to_chat(body, items), terms, model, info)

    try:
        return job_of(conversation)
    except ContextLengthExceeded as error:
        too_long = error
    starts = _later_turns(conversation) if body.truncation == "auto" else []
    head = _before_first_turn(conversation)
    # The fewer turns, the shorter the prompt: the first of these that fits has the most of them.
    fitting: Job | None = None
    low, high = 0, len(starts)
    while low < high:
        middle = (low + high) // 2
        try:
            fitting, high = job_of([*head, *conversation[starts[middle] :]]), middle
        except ContextLengthExceeded as error:
            too_long, low = error, middle + 1
    if fitting is None:
        raise too_long
    return fitting


def _later_turns(conversation: Sequence[InputItem]) -> list[int]:
    """Where each turn but the first begins: with what the user says. Calls and their results are of one turn."""
    return [index for index, item in enumerate(conversation) if _is_user(item)][1:]


def _before_first_turn(conversation: Sequence[InputItem]) -> list[InputItem]:
    """What the system says there, which holds for all turns."""
    end = next((index for index, item in enumerate(conversation) if _is_user(item)), 0)
    return [item for item in conversation[:end] if item.role in ("system", "developer")]


def _is_user(item: InputItem) -> bool:
    return item.type == "message" and item.role == "user"


def _check_include(include: Sequence[str]) -> None:
    for index, value in enumerate(include):
        if value not in INCLUDABLE:
            raise InvalidRequest(
                f"include[{index}] is {value[:80]!r}; known are {', '.join(sorted(INCLUDABLE))}",
                param=f"include[{index}]",
            )
