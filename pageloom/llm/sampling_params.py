"""What a program asks of the answers to its prompts: vLLM's SamplingParams, which become the engine's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Self

from pageloom import sampling_params
from pageloom.errors import InvalidRequest
from pageloom.field_errors import naming_fields
from pageloom.grammars.schemas import FormOptions
from pageloom.grammars.structured_outputs import constrained_field
from pageloom.llm.argument_names import check_names
from pageloom.llm.argument_types import require_json, require_type, require_types, require_unicode

DEFAULT_MAX_TOKENS = 16
MAX_STOP_STRINGS = 16
# vLLM's.
MAX_NUM_CHOICES = 16_384
_WITH = "structured_outputs=StructuredOutputsParams({}=...) says it"
# Parameters of others that are not there -> what is there instead.
_NOT_HERE: Mapping[str, str] = MappingProxyType(
    {
        **{f"guided_{name}": _WITH.format(name) for name in ("json", "regex", "choice", "grammar", "json_object")},
        "best_of": "all n answers are returned; draw more and choose",
        "use_beam_search": "answers are sampled",
        "truncate_prompt_tokens": "prompts are given as they are to be read",
    }
)
# The one place for what the sampler does unless it is told.
_SAMPLER = sampling_params.SamplingParams()


class RequestOutputKind(Enum):
    """What each output of a stream holds: all so far, what is new, or only the end counts."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form of an answer: exactly one of the first six; docs/structured-outputs.md says what they accept. `json` is
    a schema, or its text. The others say how JSON is written."""

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    """vLLM's fields, defaults and meaning. May be changed until it is used; one value may serve many prompts.

    What the sampler is told is `pageloom.sampling_params.SamplingParams`, which also checks it; this adds what concerns
    texts: `n` answers, `stop` strings, `bad_words`, `structured_outputs`, special tokens. `max_tokens` None is the rest
    of the context. `seed` −1 is none. `spaces_between_special_tokens` has no effect: none are put there.

    Raises InvalidRequest, which names the field, if a value is out of range, and TypeError for a field that is none.
    """

    n: int = 1
    presence_penalty: float = _SAMPLER.presence_penalty
    frequency_penalty: float = _SAMPLER.frequency_penalty
    repetition_penalty: float = _SAMPLER.repetition_penalty
    temperature: float = _SAMPLER.temperature
    top_p: float = _SAMPLER.top_p
    top_k: int = _SAMPLER.top_k
    min_p: float = _SAMPLER.min_p
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    allowed_token_ids: Sequence[int] | None = None
    logit_bias: Mapping[int, float] | None = None
    ignore_eos: bool = _SAMPLER.ignore_eos
    max_tokens: int | None = DEFAULT_MAX_TOKENS
    min_tokens: int = _SAMPLER.min_tokens
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __new__(cls, *_args: object, **given: object) -> Self:
        check_names("SamplingParams", given, cls, _NOT_HERE)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self.sampler()
        constrained_field(self.form())

    def clone(self) -> Self:
        return replace(self)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def form(self) -> FormOptions:
        """`structured_outputs` as the grammars' code reads it. Raises InvalidRequest."""
        require_type("structured_outputs", self.structured_outputs, StructuredOutputsParams | None)
        if self.structured_outputs is None:
            return FormOptions()
        values = {field.name: getattr(self.structured_outputs, field.name) for field in fields(StructuredOutputsParams)}
        given = {name: value for name, value in values.items() if value is not None}
        for name, value in given.items():
            require_json(f"structured_outputs.{name}", value)
        with naming_fields():
            return FormOptions.model_validate({"structured_outputs": given})

    def sampler(
        self, *, bad_words: tuple[tuple[int, ...], ...] = (), grammar: str = ""
    ) -> sampling_params.SamplingParams:
        """What the engine is told; words and forms come as token ids and as a grammar. Raises InvalidRequest."""
        self._check()
        return sampling_params.SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=dict(self.logit_bias or {}),
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            stop_token_ids=_ids(self.stop_token_ids),
            logprobs=self.logprobs,
            seed=None if self.seed == -1 else self.seed,
            grammar=grammar,
            allowed_token_ids=_ids(self.allowed_token_ids),
            bad_words=bad_words,
            prompt_logprobs=self.prompt_logprobs,
        )

    def _check(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(SamplingParams)}
        require_types(given, SamplingParams, InvalidRequest)
        if not 1 <= self.n <= MAX_NUM_CHOICES:
            raise InvalidRequest(f"n must be between 1 and {MAX_NUM_CHOICES}, not {self.n}", param="n")
        for name, texts in (("stop", self.stop_strings), ("bad_words", self.bad_words or ())):
            for text in texts:
                require_unicode(name, text)
        if self.allowed_token_ids is not None and not len(self.allowed_token_ids):
            raise InvalidRequest("allowed_token_ids is empty, which would allow nothing", param="allowed_token_ids")
        if len(self.stop_strings) > MAX_STOP_STRINGS or not all(self.stop_strings):
            raise InvalidRequest(f"stop takes at most {MAX_STOP_STRINGS} strings, none of them empty", param="stop")
        if self.stop_strings and not self.detokenize:
            raise InvalidRequest("stop strings are found in the text, so they need detokenize", param="stop")


def _ids(token_ids: Sequence[int] | None) -> tuple[int, ...]:
    # An array has no truth value.
    return () if token_ids is None else tuple(token_ids)
