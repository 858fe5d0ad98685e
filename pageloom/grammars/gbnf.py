"""llama.cpp's notation of grammars (GBNF) -> llguidance's dialect of Lark, token by token: the two differ in names,
literals and character classes, and in that Lark tells what the lexer matches by capitals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pageloom.errors import InvalidRequest
from pageloom.form_limits import DEFAULT_FORM_LIMITS, FormLimits
from pageloom.grammars.lark_text import lark_string

_ROOT = "root"
_TOKEN = re.compile(
    r"""(?P<space>\s+|\#[^\n]*)
    | (?P<rule>[a-zA-Z0-9_-]+)\s*::=
    | (?P<name>[a-zA-Z0-9_-]+)
    | (?P<literal>"(?:[^"\\\n]|\\.)*")
    | (?P<chars>\[(?:[^\]\\\n]|\\.)*\])
    | (?P<times>\{\s*\d{1,6}\s*(?:,\s*(?:\d{1,6})?\s*)?\})
    | (?P<any>\.)
    | (?P<sign>[|()*+?])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.DOTALL)
_PLAIN_ESCAPES: Final[Mapping[str, str]] = {
    "n": "\n",
    "r": "\r",
    "t": "\t",
    **{char: char for char in '"\\[]^-'},
}
_IS_LARK = re.compile(r"(?m)^\s*(?:%llguidance\b|start\s*:)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    """`kind` is a group of _TOKEN. `text` is Lark's, or for a name the rule's own."""

    kind: str
    text: str


def is_gbnf(text: str) -> bool:
    return "::=" in text and not _IS_LARK.search(text)


def to_lark(text: str, *, param: str, limits: FormLimits = DEFAULT_FORM_LIMITS) -> str:
    """Raises InvalidRequest, with the line that is not understood, or the name of a rule that is missing."""
    rules = _rules(text, param, limits.max_grammar_rules)
    for name, tokens in rules.items():
        for token in tokens:
            if token.kind == "name" and token.text not in rules:
                raise InvalidRequest(
                    f"{param}: the rule {name!r} uses {token.text!r}, which is not defined", param=param
                )
    if _ROOT not in rules:
        raise InvalidRequest(f"{param} has no rule {_ROOT!r}", param=param)
    names = _lark_names(rules)
    lines = [f"start: {names[_ROOT]}"]
    lines += [f"{names[name]}: {' '.join(_body(tokens, names))}" for name, tokens in rules.items()]
    return "\n".join(lines)


def _rules(text: str, param: str, most: int) -> dict[str, list[_Token]]:
    rules: dict[str, list[_Token]] = {}
    body: list[_Token] | None = None
    for kind, found, line in _scan(text, param):
        if kind == "rule":
            if found in rules or len(rules) >= most:
                reason = f"{found!r} is defined twice" if found in rules else f"more than {most} rules"
                raise InvalidRequest(f"{param}, line {line}: {reason}", param=param)
            body = rules[found] = []
        elif body is None:
            raise InvalidRequest(f"{param}, line {line}: a rule such as root ::= ... must come first", param=param)
        else:
            body.append(_Token(kind=kind, text=_lark_token(kind, found, param, line)))
    return rules


def _scan(text: str, param: str) -> Iterator[tuple[str, str, int]]:
    """(kind, text, line) of each token."""
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            rest = text[position : position + 30].partition("\n")[0]
            raise InvalidRequest(f"{param}, line {line}: {rest!r} is not understood", param=param)
        kind = match.lastgroup or ""
        if kind != "space":
            yield kind, match[kind], line
        line += match[0].count("\n")
        position = match.end()


def _lark_token(kind: str, text: str, param: str, line: int) -> str:
    if kind == "any":
        return "/(?s:.)/"
    if kind == "times":
        return re.sub(r"\s", "", text)
    if kind not in ("literal", "chars"):
        return text
    try:
        return lark_string("".join(_chars(text[1:-1]))) if kind == "literal" else _char_class(text[1:-1])
    except ValueError as error:
        raise InvalidRequest(f"{param}, line {line}: {error}", param=param) from None


def _chars(text: str) -> Iterator[str]:
    """Raises ValueError for an escape that is not known."""
    for match in _ESCAPE.finditer(text):
        code = match[1] or match[2] or match[3]
        if code is not None:
            yield chr(int(code, 16))
        elif match[5] is not None:
            yield match[5]
        elif match[4] in _PLAIN_ESCAPES:
            yield _PLAIN_ESCAPES[match[4]]
        else:
            raise ValueError(f"the escape {match[0]!r} is not known")


def _char_class(text: str) -> str:
    """Every character but the hyphen of a range by its number: none of them means anything to a regex so."""
    negated = text.startswith("^")
    parts: list[str] = []
    for match in _ESCAPE.finditer(text[negated:]):
        is_range = match[5] == "-" and parts and match.end() < len(text[negated:])
        parts.append("-" if is_range else f"\\x{{{ord(next(_chars(match[0]))):x}}}")
    if not parts:
        raise ValueError("the character class [] is empty")
    return f"/[{'^' * negated}{''.join(parts)}]/"


def _lark_names(rules: Mapping[str, Iterable[_Token]]) -> dict[str, str]:
    """Rules that lead back to themselves are for the parser; all others can be matched by the lexer, which is
    faster, and are in capitals."""
    users: dict[str, list[str]] = {name: [] for name in rules}
    num_unknown = {}
    for name, tokens in rules.items():
        used = {token.text for token in tokens if token.kind == "name"}
        num_unknown[name] = len(used)
        for other in used:
            users[other].append(name)
    ready = [name for name, count in num_unknown.items() if count == 0]
    lexed = set()
    while ready:
        name = ready.pop()
        lexed.add(name)
        for user in users[name]:
            num_unknown[user] -= 1
            if num_unknown[user] == 0:
                ready.append(user)
    names = {}
    for index, name in enumerate(rules):
        plain = re.sub(r"[^a-z0-9_]", "_", name.lower())
        names[name] = f"R{index}_{plain.upper()}" if name in lexed else f"r{index}_{plain}"
    return names


def _body(tokens: Iterable[_Token], names: Mapping[str, str]) -> Iterator[str]:
    """An alternative without anything in it is the empty text."""
    empty = True
    for token in tokens:
        if empty and token.text in ("|", ")") and token.kind == "sign":
            yield '""'
        empty = token.kind == "sign" and token.text in ("|", "(")
        yield names[token.text] if token.kind == "name" else token.text
    if empty:
        yield '""'
