"""How may a text that has to match a grammar go on? llguidance, behind the few calls that the sampler makes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import structlog
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par
from numpy.typing import NDArray

from pageloom.errors import InvalidRequest, ModelLoadError
from pageloom.grammar_limits import GRAMMAR_LIMITS
from pageloom.model_files import ModelFiles
from pageloom.plan import ModelInfo
from pageloom.tokenizer import Tokenizer, load_tokenizer

log = structlog.get_logger()

_MAX_CACHED_GRAMMARS = 64
_MAX_MESSAGE_CHARS = 500


class Vocabulary:
    """A model's tokens in the shape that llguidance's TokenizerWrapper has. Special ones, and ids without a spelling,
    are no text: a grammar has them only where it names them."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, model: ModelInfo) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = model.eos_token_ids[0]
        self.bos_token_id = None
        self.special_token_ids = sorted(tokenizer.special_ids.union(model.eos_token_ids))
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(model.vocab_size)]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


class Grammars:
    """The grammars of one model. Compiled ones are kept, the least recently used goes first."""

    def __init__(self, tokenizer: LLTokenizer, *, num_threads: int) -> None:
        self._tokenizer = tokenizer
        self._executor = LLExecutor(num_threads)
        self._limits = LLParserLimits(**GRAMMAR_LIMITS)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def match(self, grammar: str, output_token_ids: Sequence[int]) -> Match:
        """Where an output that has to match `grammar` is after these tokens. Raises InvalidRequest."""
        matcher = self._compiled_matcher(grammar).deep_copy()
        if not matcher.consume_tokens(list(output_token_ids)):
            raise InvalidRequest(f"the output so far does not match the grammar: {_problem(matcher)}", param="grammar")
        return Match(matcher)

    def fill(self, matches: Sequence[tuple[Match, int]], bits: NDArray[np.int32]) -> None:
        """Writes for each match, into the row of `bits` [rows, vocab / 32] that is given with it, which tokens may
        come next: bit i of element j for token 32 j + i."""
        fill_next_token_bitmask_par(self._executor, [(match.matcher, row) for match, row in matches], bits)

    def _compiled_matcher(self, grammar: str) -> LLMatcher:
        matcher = self._compiled.get(grammar)
        if matcher is not None:
            self._compiled.move_to_end(grammar)
            return matcher
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise InvalidRequest(f"the grammar cannot be used: {_problem(matcher)}", param="grammar")
        self._compiled[grammar] = matcher
        if len(self._compiled) > _MAX_CACHED_GRAMMARS:
            self._compiled.popitem(last=False)
        return matcher


class Match:
    """How far one output is in its grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher

    def take(self, token_id: int) -> None:
        """The output's next token. What comes after the end of the grammar does not matter: the output has ended."""
        if not self.matcher.is_stopped():
            self.matcher.consume_token(token_id)

    @property
    def problem(self) -> str:
        """Why it cannot go on; empty if it can. It never recovers."""
        if not self.matcher.is_error():
            return ""
        return f"the grammar cannot be followed any further: {_problem(self.matcher)}"


def open_grammars(files: ModelFiles, model: ModelInfo, *, num_threads: int) -> Grammars | None:
    """None if the model has no tokenizer that can be read, or no token that ends a text."""
    if not model.eos_token_ids:
        log.warning("no grammars: the model has no end-of-sequence token")
        return None
    try:
        vocabulary = Vocabulary(load_tokenizer(files), model)
    except ModelLoadError as error:
        log.warning("no grammars: the model's tokenizer cannot be read", reason=str(error))
        return None
    tokenizer = LLTokenizer(vocabulary, model.vocab_size, list(model.eos_token_ids))
    return Grammars(tokenizer, num_threads=num_threads)


def _problem(matcher: LLMatcher) -> str:
    return " ".join(matcher.get_error().split())[:_MAX_MESSAGE_CHARS]
