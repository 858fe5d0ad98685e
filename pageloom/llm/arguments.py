"""Arguments as programs give them, one for all prompts or one for each -> one for each, and the engine's questions."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import TypeVar

from pageloom.errors import InvalidRequest
from pageloom.llm.answer import Question
from pageloom.llm.argument_types import require_type, require_unicode
from pageloom.llm.asked import Asked
from pageloom.llm.engine import Engine
from pageloom.llm.prompts import Prompt, PromptType, listed, read_prompt
from pageloom.llm.sampling_params import SamplingParams

T = TypeVar("T")
# What travels in 32 bits.
MAX_PRIORITY = 2**31 - 1


def read_prompts(engine: Engine, prompts: PromptType | Sequence[PromptType], name: str = "prompts") -> list[Prompt]:
    """Raises InvalidRequest or ContextLengthExceeded."""
    given = listed(prompts, name)
    names = [name] if len(given) == 1 else [f"{name}[{index}]" for index in range(len(given))]
    tokenizer, info = engine.model.tokenizer, engine.info
    return [read_prompt(each, tokenizer, info, its_name) for each, its_name in zip(given, names, strict=True)]


def default_sampling_params(engine: Engine) -> SamplingParams:
    """vLLM's, with what the model's generation_config.json says."""
    defaults = engine.model.defaults
    params = SamplingParams(
        temperature=defaults.temperature,
        top_p=defaults.top_p,
        top_k=defaults.top_k,
        min_p=defaults.min_p,
        repetition_penalty=defaults.repetition_penalty,
    )
    if defaults.max_tokens is not None:
        params.max_tokens = defaults.max_tokens
    return params


def one_each(
    engine: Engine, count: int, params: SamplingParams | Sequence[SamplingParams] | None
) -> list[SamplingParams]:
    """Raises InvalidRequest unless there is one for all prompts or one for each."""
    if params is None:
        params = default_sampling_params(engine)
    require_type("sampling_params", params, SamplingParams | Sequence[SamplingParams])
    return [params] * count if isinstance(params, SamplingParams) else _counted(params, count, "sampling_params")


def priority_each(count: int, priority: int | Sequence[int] | None) -> list[int]:
    """Raises InvalidRequest unless there is one for all prompts or one for each."""
    require_type("priority", priority, int | Sequence[int] | None)
    one = 0 if priority is None else priority
    each = [int(one)] * count if isinstance(one, int | Integral) else _counted(one, count, "priority")
    for value in each:
        if abs(value) > MAX_PRIORITY:
            raise InvalidRequest(
                f"priority must be between {-MAX_PRIORITY} and {MAX_PRIORITY}, not {value}", param="priority"
            )
    return each


def params_or_default(engine: Engine, params: SamplingParams | None) -> SamplingParams:
    """Raises InvalidRequest for anything else."""
    require_type("sampling_params", params, SamplingParams | None)
    return default_sampling_params(engine) if params is None else params


def tokenize(engine: Engine, prompts: str | Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
    """Raises InvalidRequest."""
    require_type("prompts", prompts, str | Sequence[str])
    texts = [prompts] if isinstance(prompts, str) else prompts
    for text in texts:
        require_unicode("prompts", text)
    return [engine.model.tokenizer.encode(text, add_special_tokens=add_special_tokens) for text in texts]


async def ask_each(engine: Engine, asked: Sequence[Asked], priority: Sequence[int]) -> list[Question]:
    """Raises InvalidRequest before the engine has heard of any of them."""
    return [
        await engine.question(each, priority=its_priority) for each, its_priority in zip(asked, priority, strict=True)
    ]


def _counted(values: Sequence[T], count: int, name: str) -> list[T]:
    if len(values) != count:
        raise InvalidRequest(f"{name} has {len(values)} entries for {count} prompts; give one, or one each", param=name)
    return list(values)
