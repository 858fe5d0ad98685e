"""What a grammar, allowed tokens and bad words leave: texts that match, and trouble that stays one request's own."""

import json
import re
from collections.abc import Callable

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from pageloom.errors import InvalidRequest
from pageloom.grammar_limits import GrammarLimits
from pageloom.model_files import locate_model
from pageloom.plan import Failure
from pageloom.sampling_params import SamplingParams
from pageloom.tokenizer import Tokenizer, load_tokenizer
from tests.support.sampler_bench import Bench, plain_rows, tokens_by_slot
from worker_svc.grammar import Grammars, Vocabulary, open_grammars

# Wider than the tokenizer's 49,152 ids, and no multiple of 32.
VOCAB_SIZE = 49_157
EOS = (2, 0)
TOKENIZER = load_tokenizer(locate_model(""))

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["tea", "coffee", "你好"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}

TEN_OBJECTS = [{"properties": {f"p{i}": {"type": "integer"}}} for i in range(10)]


def schema(value: object) -> str:
    return json.dumps({"grammars": [{"json_schema": {"x-guidance": {"whitespace_flexible": False}} | dict(value)}]})  # type: ignore[call-overload]


def regex(pattern: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": f"start: /{pattern}/"}]})


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    opened = open_grammars(locate_model(""), vocab_size=VOCAB_SIZE, eos_token_ids=EOS, num_threads=2, cache_bytes=2**26)
    assert opened is not None
    return opened


@pytest.fixture
def bench(grammars: Grammars) -> Bench:
    return Bench(VOCAB_SIZE, 8, EOS, grammars)


def logits_at(step: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(step)) * 3


def run_to_end(bench: Bench, slot: int, max_steps: int = 200) -> list[int]:
    """Draws for one slot, from its own logits at each length, until it draws an end-of-sequence token."""
    while not bench.outputs[slot] or bench.outputs[slot][-1] not in EOS:
        assert len(bench.outputs[slot]) < max_steps, text_of(bench.outputs[slot])
        draws = bench.sample(logits_at(len(bench.outputs[slot])), [slot])
        assert not draws.failures
    return bench.outputs[slot]


def text_of(token_ids: list[int]) -> str:
    return TOKENIZER.decode([token_id for token_id in token_ids if token_id not in EOS], skip_special_tokens=False)


def is_person(text: str) -> bool:
    person = json.loads(text)
    return (
        person.keys() == {"name", "age", "likes"}
        and len(person["name"]) <= 12
        and 0 <= person["age"] <= 150
        and 1 <= len(person["likes"]) <= 3
        and set(person["likes"]) <= {"tea", "coffee", "你好"}
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0, 50.0])
@pytest.mark.parametrize(
    ("grammar", "is_right"),
    [
        (schema(PERSON), is_person),
        (regex("[0-9]{3}-[a-f]{2}"), lambda text: re.fullmatch("[0-9]{3}-[a-f]{2}", text)),
        (regex("(🙂|é|你){2,4}"), lambda text: re.fullmatch("(🙂|é|你){2,4}", text)),
        (regex("<[|]im_end[|]>"), lambda text: text == "<|im_end|>"),
    ],
    ids=["schema", "regex", "unicode", "spelling of a special token"],
)
def test_whatever_the_model_wants_the_text_matches(
    bench: Bench, grammar: str, is_right: Callable[[str], object], temperature: float
):
    for seed in range(2):
        bench.bind(0, SamplingParams(seed=seed, temperature=temperature, grammar=grammar))
        output = run_to_end(bench, 0)
        assert output[-1] in EOS
        assert not set(output[:-1]) & TOKENIZER.special_ids
        assert is_right(text_of(output)), text_of(output)


def test_a_sequence_goes_on_from_its_output_as_if_never_stopped(bench: Bench):
    sampling = SamplingParams(seed=3, temperature=1.0, grammar=schema(PERSON))
    bench.bind(0, sampling)
    whole = list(run_to_end(bench, 0))
    for num_known in range(1, len(whole), 4):
        bench.bind(5, sampling, output=whole[:num_known])
        assert run_to_end(bench, 5) == whole


def test_an_output_that_does_not_match_its_grammar_is_refused(bench: Bench):
    with pytest.raises(InvalidRequest, match="the output so far does not match the grammar") as caught:
        bench.bind(
            0, SamplingParams(seed=0, grammar=regex("[0-9]+")), output=TOKENIZER.encode("xy", add_special_tokens=False)
        )
    assert caught.value.param == "grammar"


def test_a_row_with_a_grammar_changes_nothing_for_its_mates(bench: Bench, grammars: Grammars):
    mates = [SamplingParams(seed=slot, temperature=float(slot % 2), logprobs=slot % 3) for slot in range(3)]
    alone = Bench(VOCAB_SIZE, 8, EOS, grammars)
    for slot, sampling in enumerate(mates):
        bench.bind(slot, sampling)
        alone.bind(slot, sampling)
    bench.bind(6, SamplingParams(seed=9, grammar=schema(PERSON)))
    for step in range(6):
        logits = logits_at(step, 4)
        together = bench.sample(logits, [0, 1, 6, 2])
        apart = alone.sample(logits[[0, 1, 3]], [0, 1, 2])
        assert {slot: token for slot, token in tokens_by_slot(together).items() if slot != 6} == tokens_by_slot(apart)
        assert together.logprobs == apart.logprobs


def test_logprobs_are_of_the_distribution_before_the_grammar(bench: Bench):
    bench.bind(0, SamplingParams(seed=0, temperature=0.0, grammar=regex("[0-9]"), logprobs=2))
    logits = logits_at(0)
    draws = bench.sample(logits, [0])
    raw = logits[0].log_softmax(dim=-1)
    assert draws.logprobs[0][0].logprob == pytest.approx(raw[draws.token_ids[0]].item(), abs=1e-4)
    assert draws.logprobs[0][0].top_token_ids == tuple(raw.topk(2).indices.tolist())


def test_a_tokenizer_that_puts_a_space_before_a_text():
    """What a grammar leaves no choice about is spelled without it, though the tokenizer would."""
    spellings = ["</s>", "▁", "a", "b", "▁a", "ab", "<0x0A>"]
    backend = tokenizers.Tokenizer(
        models.BPE(
            {spelling: token_id for token_id, spelling in enumerate(spellings)},
            [("▁", "a"), ("a", "b")],
            byte_fallback=True,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer = Tokenizer(backend, special_tokens={}, chat_templates={})
    assert tokenizer.encode("ab", add_special_tokens=False) == [4, 3]
    vocabulary = Vocabulary(tokenizer, vocab_size=len(spellings), eos_token_ids=(0,))
    bench = Bench(len(spellings), 2, (0,), Grammars(vocabulary, num_threads=1, cache_bytes=2**20))
    bench.bind(0, SamplingParams(seed=0, grammar=regex("ab\n? a")))
    while 0 not in bench.outputs[0]:
        bench.sample(torch.zeros(1, len(spellings)), [0])
    text = b"".join(vocabulary.tokens[token_id] for token_id in bench.outputs[0][:-1])
    assert re.fullmatch(b"ab\n? a", text)


def test_after_the_end_nothing_fails(bench: Bench):
    """With two steps in flight, a step or two follow the last one."""
    bench.bind(0, SamplingParams(seed=0, grammar=regex("[0-9]")))
    run_to_end(bench, 0)
    for step in range(3):
        draws = bench.sample(logits_at(step), [0])
        assert not draws.failures
        assert draws.token_ids[0] in EOS


class TestMinTokens:
    def test_the_end_comes_no_earlier_where_the_grammar_goes_on(self, bench: Bench):
        digits = [token_id for token_id in range(VOCAB_SIZE) if re.fullmatch(b"[0-9]", TOKENIZER.token_bytes(token_id))]
        assert len(digits) == 10
        sampling = SamplingParams(
            seed=0, temperature=0.0, grammar=regex("[0-9]+"), min_tokens=5, logit_bias=dict.fromkeys(EOS, 100.0)
        )
        bench.bind(0, sampling)
        assert len(run_to_end(bench, 0)) == 6

    def test_it_comes_where_the_grammar_ends(self, bench: Bench):
        bench.bind(0, SamplingParams(seed=0, grammar=regex("[0-9]{2}"), min_tokens=50, ignore_eos=True))
        assert re.fullmatch("[0-9]{2}", text_of(run_to_end(bench, 0)))

    def test_a_stop_token_that_the_grammar_needs_comes(self, bench: Bench):
        (comma,) = TOKENIZER.encode(",", add_special_tokens=False)
        bench.bind(0, SamplingParams(seed=0, grammar=regex(",x"), min_tokens=9, stop_token_ids=(comma,)))
        assert bench.sample(logits_at(0), [0]).token_ids.tolist() == [comma]


class TestTrouble:
    @pytest.mark.parametrize(
        ("grammar", "says"),
        [
            ("{", ""),
            (json.dumps({"grammars": []}), ""),
            (json.dumps({"grammars": [{"json_schema": {"type": "strange"}}]}), "strange"),
            (json.dumps({"grammars": [{"lark_grammar": "start: other"}]}), "other"),
            (json.dumps({"grammars": [{"json_schema": {"allOf": [{"anyOf": TEN_OBJECTS}] * 10}}]}), "schema too large"),
        ],
    )
    def test_a_grammar_that_cannot_be_used_is_refused(self, bench: Bench, grammar: str, says: str):
        bench.bind(0, SamplingParams(seed=0, temperature=0.0, allowed_token_ids=(5,)))
        with pytest.raises(InvalidRequest, match="the grammar cannot be used: .*" + says) as caught:
            bench.bind(0, SamplingParams(seed=0, grammar=grammar))
        assert caught.value.param == "grammar"
        assert len(caught.value.message) < 600
        # Nothing of it, nor of the one before, stays behind.
        assert not bench.sampler.takes_most_likely(plain_rows([0], np.array([3]), np.array([0])))
        bench.bind(0, SamplingParams(seed=0, temperature=0.0))
        assert bench.sampler.takes_most_likely(plain_rows([0], np.array([3]), np.array([0])))

    def test_one_that_takes_too_much_fails_when_it_does(self):
        """It and those that share its states; the next request with the same grammar begins with none."""
        grammars = open_grammars(
            locate_model(""),
            vocab_size=VOCAB_SIZE,
            eos_token_ids=EOS,
            num_threads=1,
            cache_bytes=2**26,
            limits=GrammarLimits(max_grammar_states=1200),
        )
        bench = Bench(VOCAB_SIZE, 8, EOS, grammars)
        hungry = SamplingParams(seed=0, grammar=regex(".*a.{40}b.{40}"))
        bench.bind(0, hungry)
        bench.bind(1, SamplingParams(seed=0, grammar=regex("[0-9]{500}")))
        while not (draws := bench.sample(logits_at(len(bench.outputs[1]), 2), [0, 1])).failures:
            assert len(bench.outputs[0]) < 100
        assert draws.failures.keys() == {0}
        assert draws.failures[0].param == "grammar"
        says = "the grammar cannot be followed any further: lexer error: too many states"
        assert draws.failures[0].message.startswith(says)
        assert draws.slots.tolist() == [1]
        bench.bind(0, hungry)
        assert not bench.sample(logits_at(0), [0]).failures

    def test_one_whose_every_token_takes_too_long_fails(self, monkeypatch: pytest.MonkeyPatch, grammars: Grammars):
        """The number of ways to read a text grows with it, and the time with their number."""
        monkeypatch.setattr("worker_svc.grammar._SLOW_S", 0.001)
        bench = Bench(VOCAB_SIZE, 8, EOS, grammars)
        ambiguous = json.dumps({"grammars": [{"lark_grammar": 'start: s\ns: s s s | "a" | "b"'}]})
        bench.bind(0, SamplingParams(seed=0, temperature=0.0, grammar=ambiguous, bad_words=((EOS[0],), (EOS[1],))))
        bench.bind(1, SamplingParams(seed=0, grammar=regex("[0-9]{1500}")))
        while not (draws := bench.sample(logits_at(len(bench.outputs[1]), 2), [0, 1])).failures:
            assert len(bench.outputs[0]) < 400
        assert draws.failures.keys() == {0}
        assert draws.failures[0].param == "grammar"
        assert draws.failures[0].message.endswith("it is so ambiguous that each token takes too long")
        assert draws.slots.tolist() == [1]

    def test_a_model_without_a_tokenizer_has_no_grammars(self):
        bench = Bench()
        with pytest.raises(InvalidRequest, match="cannot follow a grammar"):
            bench.bind(0, SamplingParams(seed=0, grammar=regex("a")))

    def test_constraints_that_leave_nothing_fail_their_request_alone(self, bench: Bench):
        bench.bind(0, SamplingParams(seed=0, grammar=regex("[0-9]"), allowed_token_ids=(VOCAB_SIZE - 1,)))
        bench.bind(1, SamplingParams(seed=0, grammar=regex("[0-9]")))
        bench.bind(2, SamplingParams(seed=0, allowed_token_ids=EOS, min_tokens=1))
        bench.bind(3, SamplingParams(seed=0, temperature=0.0, allowed_token_ids=(5, 6), bad_words=((5,),)))
        draws = bench.sample(logits_at(0, 4), [0, 1, 2, 3])
        message = "no token is left that grammar, allowed_token_ids, bad_words and min_tokens together permit"
        assert draws.failures == {0: Failure(message, "grammar"), 2: Failure(message, "allowed_token_ids")}
        assert draws.slots.tolist() == [1, 3]
        assert draws.token_ids[1] == 6


def test_bad_words_do_not_come_up(bench: Bench):
    """Neither when the output begins with one, nor across what was generated before a resume."""
    bench.bind(0, SamplingParams(seed=0, temperature=0.0, bad_words=((4, 5, 6), (9,), (6, 7))), output=[4, 5])
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [6, 9, 7, 8]] = torch.tensor([9.0, 8.0, 7.0, 6.0])
    # 6 would complete 4 5 6; 7 is free then; and after a 6 it is not.
    assert [int(bench.sample(logits, [0]).token_ids[0]) for _ in range(3)] == [7, 6, 6]
    bench.bind(0, SamplingParams(seed=0, temperature=0.0, bad_words=((1, 6),)), prompt=(1,))
    assert bench.sample(logits, [0]).token_ids.tolist() == [6]


def test_a_released_slot_is_free_of_its_constraint(bench: Bench):
    bench.bind(0, SamplingParams(seed=0, temperature=0.0, grammar=regex("a")))
    assert not bench.sampler.takes_most_likely(plain_rows([0], np.array([3]), np.array([0])))
    bench.sampler.release((0, 1))
    assert bench.sampler.takes_most_likely(plain_rows([0], np.array([3]), np.array([0])))
