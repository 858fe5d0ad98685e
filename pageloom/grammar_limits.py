"""How much may a grammar take, in llguidance's own counts? Settings of the gateway, which checks, and of the worker,
which uses it: where they differ, the lower one refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from pageloom.limit_fields import limit, require_accepted

# Grammars that one worker compiles, or is still to compile, before requests may bring them.
MAX_GRAMMARS_PREPARING = 64
_MANY = 1_000_000_000


class ParserLimits(TypedDict):
    """Arguments of llguidance's LLParserLimits."""

    max_items_in_row: int
    initial_lexer_fuel: int
    step_lexer_fuel: int
    step_max_items: int
    max_lexer_states: int
    max_grammar_size: int
    verbose_errors: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarLimits:
    """Raises InvalidConfig, naming the flag."""

    max_grammar_size: int = limit(500_000, "Most symbols of a compiled grammar.", high=_MANY)
    max_grammar_row_items: int = limit(2000, "Most ways in which a text can be read so far.", high=_MANY)
    max_grammar_step_items: int = limit(50_000, "Most of these looked at for one token.", high=_MANY)
    max_grammar_start_fuel: int = limit(
        1_000_000, "Most work on regular expressions when a grammar is compiled.", high=_MANY
    )
    max_grammar_step_fuel: int = limit(200_000, "Most of it for one token.", high=_MANY)
    # Shared by all texts of one grammar. 180 bytes to two kilobytes each.
    max_grammar_states: int = limit(50_000, "Most states of a grammar's lexer, found as texts go on.", high=_MANY)

    def __post_init__(self) -> None:
        require_accepted(self)

    @property
    def of_parser(self) -> ParserLimits:
        return {
            "max_items_in_row": self.max_grammar_row_items,
            "initial_lexer_fuel": self.max_grammar_start_fuel,
            "step_lexer_fuel": self.max_grammar_step_fuel,
            "step_max_items": self.max_grammar_step_items,
            "max_lexer_states": self.max_grammar_states,
            "max_grammar_size": self.max_grammar_size,
            # Otherwise the state of the parser, with the grammar in it, goes into every message.
            "verbose_errors": False,
        }


DEFAULT_GRAMMAR_LIMITS = GrammarLimits()
