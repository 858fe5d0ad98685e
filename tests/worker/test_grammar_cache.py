"""Compiled grammars: prepared beside the steps, kept within a number of bytes, let go again."""

import json

import psutil
import pytest

from pageloom.errors import InvalidRequest
from pageloom.model_files import locate_model
from worker_svc import grammar
from worker_svc.grammar import Grammars, open_grammars
from worker_svc.grammar_cache import GrammarCache, compiled_bytes

CACHE_BYTES = 8 * 2**20
BAD = json.dumps({"grammars": [{"lark_grammar": "start: nothing"}]})


def choice(number: int) -> str:
    return json.dumps({"grammars": [{"lark_grammar": f'start: "a" | "{number}"'}]})


def wide_schema(number: int) -> str:
    properties = {f"p{i}_{number}": {"type": "string"} for i in range(100)}
    return json.dumps({"grammars": [{"json_schema": {"type": "object", "properties": properties}}]})


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The grammars that were compiled, one after the other."""
    seen: list[str] = []
    compile_ = Grammars._compile

    def noting(self: Grammars, text: str) -> object:
        seen.append(text)
        return compile_(self, text)

    monkeypatch.setattr(Grammars, "_compile", noting)
    return seen


@pytest.fixture
def grammars() -> Grammars:
    opened = open_grammars(
        locate_model(""), vocab_size=49_152, eos_token_ids=(2,), num_threads=1, cache_bytes=CACHE_BYTES
    )
    assert opened is not None
    return opened


def test_what_was_prepared_is_not_compiled_again(grammars: Grammars, compiled: list[str]):
    for _ in range(2):
        assert grammars.prepare(choice(1)) == ""
        grammars.match(choice(1), ())
    assert compiled == [choice(1)]
    grammars.match(choice(2), ())
    assert compiled == [choice(1), choice(2)]


def test_what_cannot_be_used_is_said_both_ways(grammars: Grammars):
    said = grammars.prepare(BAD)
    assert said.startswith("the grammar cannot be used: ")
    with pytest.raises(InvalidRequest) as caught:
        grammars.match(BAD, ())
    assert caught.value.message == said


def test_what_nobody_uses_is_let_go_and_prepared_again(
    grammars: Grammars, compiled: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(grammar, "_MAX_PREPARED", 3)
    for number in (1, 2, 3, 4, 1):
        grammars.prepare(choice(number))
    assert compiled == [choice(number) for number in (1, 2, 3, 4, 1)]
    for number in (3, 4, 1):
        grammars.match(choice(number), ())
    assert len(compiled) == 5


def test_the_least_recently_used_goes_first(grammars: Grammars, compiled: list[str]):
    num_kept = CACHE_BYTES // compiled_bytes(choice(100))
    for number in range(100, 100 + num_kept):
        grammars.match(choice(number), ())
    grammars.match(choice(100), ())
    grammars.match(choice(999), ())
    compiled.clear()
    grammars.match(choice(100), ())
    assert not compiled
    grammars.match(choice(101), ())
    assert compiled == [choice(101)]


def test_one_that_is_too_large_is_not_kept():
    cache: GrammarCache[int] = GrammarCache(compiled_bytes("x" * 10))
    cache.add("x" * 10, 1)
    assert cache.get("x" * 10) == 1
    cache.add("x" * 11, 2)
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_memory_does_not_grow_with_the_number_of_grammars(grammars: Grammars):
    """Each of these takes some hundred kilobytes, all of them would take hundreds of megabytes."""

    def rss_after(first: int) -> int:
        for number in range(first, first + 200):
            assert grammars.prepare(wide_schema(number)) == ""
            grammars.match(wide_schema(number), ())
        return int(psutil.Process().memory_info().rss)

    before = rss_after(0)
    assert rss_after(200) - before < 3 * CACHE_BYTES
