"""The benchmark of grammar bombs, against a real gateway."""

import io

import pytest
from rich.console import Console

from benchmarks import grammar_bombs
from gateway.served_model import load_served_model
from tests.support.gateway_server import gateway_config, gateway_server
from tests.support.scripted_engine import says


def test_no_kind_repeats_itself_and_all_become_grammars():
    for form in grammar_bombs.BOMBS.values():
        grammar = grammar_bombs._grammar(form(1))
        assert grammar.startswith('{"grammars":')
        assert grammar != grammar_bombs._grammar(form(2))


async def test_it_says_what_happened(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grammar_bombs, "WARM_UP_S", 0.3)
    monkeypatch.setattr(grammar_bombs, "TOKENS_PER_ANSWER", 50)
    kept = {kind: grammar_bombs.BOMBS[kind] for kind in ("counted regex", "nested regex")}
    monkeypatch.setattr(grammar_bombs, "BOMBS", kept)
    shown = io.StringIO()
    async with gateway_server(load_served_model(gateway_config(scheduler_address="unused:1"))) as gateway:
        gateway.engine.script = says(gateway.encode("x") * 50, step_s=0.002)
        await grammar_bombs._run(Console(file=shown, width=100), str(gateway.http.base_url), "", 0.6)
    rows = [line.split()[:3] for line in shown.getvalue().splitlines() if " regex " in line]
    assert rows == [["counted", "regex", "200"], ["nested", "regex", "400"]]
    assert "stream alone: p50" in shown.getvalue()
