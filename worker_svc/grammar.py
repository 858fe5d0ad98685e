"""How may a text that has to match a grammar go on? llguidance, behind the few calls that the sampler makes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np
import structlog
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par
from numpy.typing import NDArray

from pageloom.errors import InvalidRequest, ModelLoadError
from pageloom.grammar_limits import DEFAULT_GRAMMAR_LIMITS, GrammarLimits
from pageloom.model_files import ModelFiles
from pageloom.tokenizer import Tokenizer, load_tokenizer
from worker_svc.grammar_cache import GrammarCache

log = structlog.get_logger()

_MAX_MESSAGE_CHARS = 500
_MAX_PREPARED = 16
NO_GRAMMARS = "this model's worker cannot follow a grammar; its log says why"
# What may come next is found in well under a millisecond. A grammar in which a text can be read in very many ways takes
# ever longer, which llguidance does not count, and everyone else in the batch waits for it.
_SLOW_S = 0.025
_MAX_SLOW_IN_TURN = 16
# With each more of them a batch may take so much longer before it is looked into which ones are slow.
_USUAL_S = 0.001


class Vocabulary(TokenizerWrapper):
    """A model's tokens for llguidance, which reads the attributes. Special ones, and ids without a spelling, are no
    text: a grammar has them only where it names them."""

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self.is_tokenizer_wrapper = True
        tokenizer.take_special_tokens_for_text()
        self._tokenizer = tokenizer
        self.eos_token_id = eos_token_ids[0]
        self.bos_token_id = None
        self.special_token_ids = sorted(tokenizer.special_ids.union(eos_token_ids))
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(vocab_size)]
        self.compiled = LLTokenizer(self, vocab_size, list(eos_token_ids))

    def __call__(self, text: str) -> list[int]:
        """Tokens whose bytes are exactly `text`, which the grammar leaves no choice about: the model's own where they
        are, otherwise the longest that fit, one after the other."""
        token_ids = self._tokenizer.encode(text, add_special_tokens=False)
        # A tokenizer may put a space before the text, normalize it, or have more tokens than the model.
        spelled = b"".join(self.tokens[token_id] for token_id in token_ids if token_id < len(self.tokens))
        if spelled == text.encode():
            return token_ids
        return self.compiled.greedy_tokenize(text)


class Grammars:
    """The grammars of one model. Compiled ones are kept, up to `cache_bytes`. All of it belongs to the thread that runs
    steps but `prepare`, which is for one thread beside it: a compilation lets others run."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        num_threads: int,
        cache_bytes: int,
        limits: GrammarLimits = DEFAULT_GRAMMAR_LIMITS,
    ) -> None:
        self._vocabulary = vocabulary
        self._executor = LLExecutor(num_threads)
        self._limits = LLParserLimits(**limits.of_parser)
        self._compiled: GrammarCache[LLMatcher] = GrammarCache(cache_bytes)
        # What the preparing thread has handed over, and will not compile again: about what is in `_compiled`.
        self._handed_over: GrammarCache[bool] = GrammarCache(cache_bytes)
        self._prepared: SimpleQueue[tuple[str, LLMatcher]] = SimpleQueue()
        self._timed = False

    def prepare(self, grammar: str) -> str:
        """Compiles a grammar before a step needs it. Returns what is wrong with it, "" if nothing is."""
        if self._handed_over.get(grammar):
            return ""
        try:
            matcher = self._compile(grammar)
        except InvalidRequest as error:
            return error.message
        with suppress(Empty):
            while self._prepared.qsize() >= _MAX_PREPARED:
                # Nobody has begun a text for so long. Whoever asks for the oldest again has it compiled again.
                self._handed_over.drop(self._prepared.get_nowait()[0])
        self._prepared.put((grammar, matcher))
        self._handed_over.add(grammar, True)
        return ""

    def match(self, grammar: str, output_token_ids: Sequence[int]) -> Match:
        """Where an output that has to match `grammar` is after these tokens. Raises InvalidRequest."""
        match = Match(grammar=grammar, matcher=self._compiled_matcher(grammar).deep_copy())
        if not match.matcher.consume_tokens(list(output_token_ids)):
            problem = _message(match.matcher)
            raise InvalidRequest(f"the output so far does not match the grammar: {problem}", param="grammar")
        return match

    def fill(self, matches: Sequence[tuple[Match, int]], bits: NDArray[np.int32]) -> None:
        """Writes for each match, into the row of `bits` [rows, vocab / 32] that is given with it, which tokens may
        come next: bit i of element j for token 32 j + i. It means nothing where there is a problem."""
        begin_s = time.perf_counter()
        if self._timed:
            for match, row in matches:
                match.fill_timed(bits, row)
        else:
            fill_next_token_bitmask_par(self._executor, [(match.matcher, row) for match, row in matches], bits)
        # After a slow one each of the next is timed alone, to tell whose it is.
        self._timed = time.perf_counter() - begin_s > _SLOW_S + _USUAL_S * len(matches)

    def problem(self, match: Match) -> str:
        """Why an output cannot go on, which it never will again; empty if it can."""
        if match.num_slow >= _MAX_SLOW_IN_TURN:
            return "the grammar cannot be followed any further: it is so ambiguous that each token takes too long"
        if not match.matcher.is_error():
            return ""
        # All copies share a lexer, whose states count as they are found: one that has too many is of no more use.
        self._compiled.drop(match.grammar)
        return f"the grammar cannot be followed any further: {_message(match.matcher)}"

    def _compiled_matcher(self, grammar: str) -> LLMatcher:
        with suppress(Empty):
            while True:
                self._compiled.add(*self._prepared.get_nowait())
        matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = self._compile(grammar)
            self._compiled.add(grammar, matcher)
        return matcher

    def _compile(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._vocabulary.compiled, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise InvalidRequest(f"the grammar cannot be used: {_message(matcher)}", param="grammar")
        return matcher


@dataclass(slots=True, kw_only=True, eq=False)
class Match:
    """How far one output is in its grammar. `num_slow` of its latest masks in turn took too long."""

    grammar: str
    matcher: LLMatcher
    num_slow: int = 0

    def fill_timed(self, bits: NDArray[np.int32], row: int) -> None:
        """By the processor's time, so that a busy machine is no reason to give an output up."""
        begin_s = time.thread_time()
        fill_next_token_bitmask(self.matcher, bits, row)
        self.num_slow = self.num_slow + 1 if time.thread_time() - begin_s > _SLOW_S else 0

    def copy(self) -> Match:
        """For an output that may go on otherwise."""
        return Match(grammar=self.grammar, matcher=self.matcher.deep_copy(), num_slow=self.num_slow)

    def num_possible(self, token_ids: Sequence[int]) -> int:
        """How many of the first of these tokens the grammar lets follow each other."""
        return self.matcher.validate_tokens(list(token_ids))

    def take(self, token_id: int) -> None:
        """The output's next token. What comes after the end of the grammar does not matter: the output has ended."""
        if not self.matcher.is_stopped():
            self.matcher.consume_token(token_id)


def open_grammars(
    files: ModelFiles,
    *,
    vocab_size: int,
    eos_token_ids: Sequence[int],
    num_threads: int,
    cache_bytes: int,
    limits: GrammarLimits = DEFAULT_GRAMMAR_LIMITS,
) -> Grammars | None:
    """For a model whose logits are `vocab_size` wide. None, with the reason in the log, if it has no tokenizer, or no
    token that ends a text."""
    if not eos_token_ids:
        log.warning("no grammars: the model has no end-of-sequence token")
        return None
    try:
        tokenizer = load_tokenizer(files)
    except ModelLoadError as error:
        log.warning("no grammars: the model's tokenizer cannot be read", reason=str(error))
        return None
    vocabulary = Vocabulary(tokenizer, vocab_size=vocab_size, eos_token_ids=eos_token_ids)
    return Grammars(vocabulary, num_threads=num_threads, cache_bytes=cache_bytes, limits=limits)


def _message(matcher: LLMatcher) -> str:
    return " ".join(matcher.get_error().split())[:_MAX_MESSAGE_CHARS]
