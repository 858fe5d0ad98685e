"""How much may a grammar take? The same where it is checked, at the gateway, and where it is used, at the worker."""

from __future__ import annotations

from typing import TypedDict

# Grammars that one worker compiles, or is still to compile, before requests may bring them.
MAX_GRAMMARS_PREPARING = 64


class GrammarLimits(TypedDict):
    """Arguments of llguidance's LLParserLimits."""

    max_items_in_row: int
    initial_lexer_fuel: int
    step_lexer_fuel: int
    step_max_items: int
    max_lexer_states: int
    max_grammar_size: int
    verbose_errors: bool


GRAMMAR_LIMITS: GrammarLimits = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    # Each takes one to two kilobytes, in every slot.
    "max_lexer_states": 50_000,
    "max_grammar_size": 500_000,
    # Otherwise the state of the parser, with the grammar in it, goes into every message.
    "verbose_errors": False,
}
