"""Pageloom: an LLM serving system. Importing this package never imports torch."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    # mypy takes what is imported under its own name for what is offered.
    from pageloom.llm.async_llm import AsyncLLM as AsyncLLM
    from pageloom.llm.llm import LLM as LLM
    from pageloom.llm.outputs import CompletionOutput as CompletionOutput
    from pageloom.llm.outputs import RequestOutput as RequestOutput
    from pageloom.llm.prompts import TextPrompt as TextPrompt
    from pageloom.llm.prompts import TokensPrompt as TokensPrompt
    from pageloom.llm.sampling_params import RequestOutputKind as RequestOutputKind
    from pageloom.llm.sampling_params import SamplingParams as SamplingParams
    from pageloom.llm.sampling_params import StructuredOutputsParams as StructuredOutputsParams

# What programs import from here -> where it is. The services import this package too, and need none of it.
_EXPORTS = {
    "AsyncLLM": "pageloom.llm.async_llm",
    "CompletionOutput": "pageloom.llm.outputs",
    "LLM": "pageloom.llm.llm",
    "RequestOutput": "pageloom.llm.outputs",
    "RequestOutputKind": "pageloom.llm.sampling_params",
    "SamplingParams": "pageloom.llm.sampling_params",
    "StructuredOutputsParams": "pageloom.llm.sampling_params",
    "TextPrompt": "pageloom.llm.prompts",
    "TokensPrompt": "pageloom.llm.prompts",
}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_EXPORTS[name]), name)
