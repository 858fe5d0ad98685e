"""What one HTTP request wants of the engine, and how the tokens become text again."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.requests.terms import Terms
from pageloom.parsing.message_parser import MessageFormat
from pageloom.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt and how to go on from it. `echo` is the text to repeat before the answer; if its log-probabilities
    are told, `echo_offsets` are the characters of it before each token."""

    token_ids: tuple[int, ...]
    sampling: SamplingParams
    echo: str = ""
    echo_offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the engine is asked for, and how its tokens become text. Of each prompt it makes `num_samples`
    choices, and the answer shows the `n` likeliest. `generate` is False if all that is asked for is what the prompts
    are: their echo, and how likely they are. Log-probabilities of prompt tokens are told with so many of the likeliest
    at each: `num_echo_logprobs` with the echo, `num_prompt_logprobs` apart from it; None is without. With
    `tokens_as_ids` they name tokens by their ids. `message_format` tells the parts of an answer apart, if it may have
    several."""

    prompts: tuple[Prompt, ...]
    terms: Terms
    n: int
    num_samples: int
    with_logprobs: bool
    include_timeline: bool
    priority: int
    cache_salt: str
    stop: tuple[str, ...]
    include_stop: bool
    skip_special_tokens: bool
    eos_token_ids: tuple[int, ...]
    generate: bool = True
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    message_format: MessageFormat | None = None
    num_echo_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    # Of the request, that which gave the prompts' grammar: what to name if that proves to be too much later.
    grammar_field: str = ""

    @property
    def scores_prompts(self) -> bool:
        """Log-probabilities of the prompts' tokens are asked for."""
        return self.num_echo_logprobs is not None or self.num_prompt_logprobs is not None

    @property
    def grammar(self) -> str:
        """The prompts of one request share it."""
        return self.prompts[0].sampling.grammar

    @property
    def thinks(self) -> bool:
        return self.message_format is not None and self.message_format.reasoning is not None

    @property
    def num_choices(self) -> int:
        """Those that are generated."""
        return self.num_samples * len(self.prompts)

    def prompt_of(self, choice_index: int) -> Prompt:
        """Of a choice as the answer numbers them."""
        return self.prompts[choice_index // self.n]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)
