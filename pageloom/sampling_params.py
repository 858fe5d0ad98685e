"""How the next token is chosen: one frozen value, validated once, at construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pageloom.errors import InvalidRequest

MAX_LOGPROBS = 20
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_SEED = 2**64 - 1
# Parameters travel and are used as float32: beyond these they would become infinite or zero.
MAX_FLOAT32, MIN_FLOAT32 = 3.4e38, 1.2e-38
NO_BIAS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of the sampler, with vLLM's names, defaults and meaning.

    Raises InvalidRequest, naming the field and what it accepts, when a value is out of range.
    Token ids are checked against the model's vocabulary where the model is known, by
    `check_vocabulary`.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: NO_BIAS)
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    seed: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        _require_in_range("temperature", self.temperature, 0.0, MAX_FLOAT32)
        _require_in_range("top_p", self.top_p, 0.0, 1.0)
        _require_in_range("top_k", self.top_k, -1, 2**31 - 1)
        _require_in_range("min_p", self.min_p, 0.0, 1.0)
        _require_in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _require_in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _require_in_range("repetition_penalty", self.repetition_penalty, 0.0, MAX_FLOAT32)
        if self.repetition_penalty < MIN_FLOAT32:
            raise InvalidRequest("repetition_penalty must be greater than 0", param="repetition_penalty")
        self._check_lengths()
        self._check_token_fields()

    def _check_lengths(self) -> None:
        if self.max_tokens is not None:
            _require_in_range("max_tokens", self.max_tokens, 1, 2**31 - 1)
        upper = 2**31 - 1 if self.max_tokens is None else self.max_tokens
        _require_in_range("min_tokens", self.min_tokens, 0, upper)
        if self.logprobs is not None:
            _require_in_range("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _require_in_range("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        if self.seed is not None:
            _require_in_range("seed", self.seed, 0, MAX_SEED)

    def _check_token_fields(self) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
            raise InvalidRequest(
                f"logit_bias has {len(self.logit_bias)} entries, at most {MAX_LOGIT_BIAS_ENTRIES} are accepted",
                param="logit_bias",
            )
        for bias in self.logit_bias.values():
            _require_in_range("logit_bias", bias, -100.0, 100.0)
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"stop_token_ids has {len(self.stop_token_ids)} ids, at most {MAX_STOP_TOKEN_IDS} are accepted",
                param="stop_token_ids",
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1 or self.top_p == 0.0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises InvalidRequest if a token id in any field is not below vocab_size (the logits' width)."""
        check_token_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        check_token_ids("logit_bias", self.logit_bias, vocab_size)


def check_token_ids(param: str, token_ids: tuple[int, ...] | list[int] | Mapping[int, float], vocab_size: int) -> None:
    """Raises InvalidRequest, naming `param`, unless every id is in [0, vocab_size)."""
    if not token_ids:
        return
    lowest, highest = min(token_ids), max(token_ids)
    if lowest < 0 or highest >= vocab_size:
        offender = lowest if lowest < 0 else highest
        raise InvalidRequest(
            f"{param} contains token id {offender}; the model accepts 0 to {vocab_size - 1}", param=param
        )


def _require_in_range(name: str, value: float, low: float, high: float) -> None:
    # Written so that NaN fails too.
    if not low <= value <= high:
        # A bound that only the wire has is worth naming only to who has broken it.
        unbounded = high in (MAX_FLOAT32, 2**31 - 1) and not value > high
        bounds = f"at least {low:g}" if unbounded else f"between {low:.10g} and {high:.10g}"
        raise InvalidRequest(f"{name} must be {bounds}, not {value!r}", param=name)
