"""How the next token is chosen: one frozen value, validated once, at construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

from pageloom.errors import InvalidRequest

MAX_LOGPROBS = 20
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_GRAMMAR_BYTES = 256 * 1024
MAX_ALLOWED_TOKEN_IDS = 65_536
MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS = 1024, 8192
MAX_SEED = 2**64 - 1
# Parameters travel and are used as float32: beyond these they would become infinite or zero.
MAX_FLOAT32, MIN_FLOAT32 = 3.4e38, 1.2e-38
NO_BIAS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of the sampler, with vLLM's names, defaults and meaning.

    Raises InvalidRequest, naming the field and what it accepts, when a value is out of range.
    `grammar` is an llguidance grammar as JSON text, "" for none; the choice ends when the grammar does, whatever
    `min_tokens` and `ignore_eos` say. If `allowed_token_ids` is not empty, no other token is drawn; none of the
    sequences in `bad_words` comes up in the output.
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
    grammar: str = ""
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
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
        self._check_constraints()

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
        _require_at_most("logit_bias", len(self.logit_bias), "entries", MAX_LOGIT_BIAS_ENTRIES)
        for bias in self.logit_bias.values():
            _require_in_range("logit_bias", bias, -100.0, 100.0)
        _require_at_most("stop_token_ids", len(self.stop_token_ids), "ids", MAX_STOP_TOKEN_IDS)

    def _check_constraints(self) -> None:
        try:
            _require_at_most("grammar", len(self.grammar.encode()), "bytes", MAX_GRAMMAR_BYTES)
        except UnicodeEncodeError:
            raise InvalidRequest("grammar is not valid Unicode: it has a lone surrogate", param="grammar") from None
        _require_at_most("allowed_token_ids", len(self.allowed_token_ids), "ids", MAX_ALLOWED_TOKEN_IDS)
        _require_at_most("bad_words", len(self.bad_words), "entries", MAX_BAD_WORDS)
        _require_at_most("bad_words", sum(map(len, self.bad_words)), "tokens in all", MAX_BAD_WORD_TOKENS)
        if not all(self.bad_words):
            raise InvalidRequest("bad_words has an entry without tokens; each needs at least one", param="bad_words")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1 or self.top_p == 0.0

    @property
    def num_constraint_bytes(self) -> int:
        """About what grammar, allowed tokens and bad words take on the wire, and not less."""
        num_grammar_bytes = len(self.grammar) if self.grammar.isascii() else 4 * len(self.grammar)
        num_entries = len(self.allowed_token_ids) + sum(len(token_ids) + 1 for token_ids in self.bad_words)
        return num_grammar_bytes + 4 * num_entries

    @property
    def ends_at_eos(self) -> bool:
        """Whether the model's end-of-sequence tokens end the output. They do whenever a grammar allows them."""
        return bool(self.grammar) or not self.ignore_eos

    @property
    def num_tokens_before_stop(self) -> int:
        """Output tokens among which a stop token does not end the choice. With a grammar every one does: the sampler
        draws none before `min_tokens` unless the grammar leaves nothing else."""
        return 0 if self.grammar else self.min_tokens

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises InvalidRequest if a token id in any field is not below vocab_size (the logits' width)."""
        check_token_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        check_token_ids("logit_bias", self.logit_bias, vocab_size)
        check_token_ids("allowed_token_ids", self.allowed_token_ids, vocab_size)
        check_token_ids("bad_words", list(chain.from_iterable(self.bad_words)), vocab_size)


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


def _require_at_most(name: str, count: int, what: str, most: int) -> None:
    if count > most:
        raise InvalidRequest(f"{name} has {count} {what}, at most {most} are accepted", param=name)


def _require_in_range(name: str, value: Any, low: float, high: float) -> None:
    """For what a program gave, of any type. Bounds that are integers mean that the value is to be one."""
    kind, accepted = (Integral, "an integer") if isinstance(low, int) else (Real, "a number")
    is_accepted = isinstance(value, kind)
    if not is_accepted:
        raise InvalidRequest(f"{name} must be {accepted}, not {value!r}", param=name)
    # Written so that NaN fails too.
    if not low <= value <= high:
        # A bound that only the wire has is worth naming only to who has broken it.
        unbounded = high in (MAX_FLOAT32, 2**31 - 1) and not value > high
        bounds = f"at least {low:g}" if unbounded else f"between {low:.10g} and {high:.10g}"
        raise InvalidRequest(f"{name} must be {bounds}, not {value!r}", param=name)
