"""Pageloom: an LLM serving system. Importing this package never imports torch."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pageloom.llm.async_llm import AsyncLLM as AsyncLLM
    from pageloom.llm.llm import LLM as LLM
    from pageloom.llm.sampling_params import RequestOutputKind as RequestOutputKind
    from pageloom.llm.sampling_params import SamplingParams as SamplingParams

# What programs import from here -> where it is. The services import this package too, and need none of it.
_EXPORTS = {
    "AsyncLLM": "pageloom.llm.async_llm",
    "LLM": "pageloom.llm.llm",
    "RequestOutputKind": "pageloom.llm.sampling_params",
    "SamplingParams": "pageloom.llm.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_EXPORTS[name]), name)
