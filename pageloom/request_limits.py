"""How large may the parts of one request be? Settings of the gateway, a flag and an environment variable each."""

from __future__ import annotations

from dataclasses import dataclass

from pageloom.limit_fields import limit, require_accepted
from pageloom.sampling_params import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_LOGPROBS,
    MAX_STOP_TOKEN_IDS,
)

# The JSON parser's own limit is 1024.
_DEEPEST_JSON = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What the gateway takes at most, checked before it does any work for a request.

    Where the engine has a limit of its own, ours can only be lower. Raises InvalidConfig, naming the flag.
    """

    max_json_depth: int = limit(64, "Deepest nesting of arrays and objects in a body.", low=8, high=_DEEPEST_JSON)
    # What these two cost is what holds up other requests: a few milliseconds for each ten thousand.
    max_json_containers: int = limit(16_384, "Most arrays and objects in a body.")
    max_json_strings: int = limit(65_536, "Most strings in a body, names of members among them.")
    max_messages: int = limit(2048, "Most messages of a chat, or items of a response's `input`.")
    max_prompts: int = limit(256, "Most prompts of a text completion.")
    # OpenAI's limit; no more of them than `max_prompts` are at the engine at one time.
    max_inputs: int = limit(2048, "Most inputs of an embedding request.")
    max_choices: int = limit(128, "Most choices of a prompt: `n` and `best_of`.")
    max_choices_in_all: int = limit(256, "Most choices of all prompts together.")
    max_stop_strings: int = limit(16, "Most strings in `stop` or `stop_sequences`.")
    max_stop_chars: int = limit(256, "Longest of these strings, in characters.")
    max_stop_token_ids: int = limit(MAX_STOP_TOKEN_IDS, "Most ids in `stop_token_ids`.", low=0, high=MAX_STOP_TOKEN_IDS)
    max_logit_bias: int = limit(
        MAX_LOGIT_BIAS_ENTRIES, "Most entries of `logit_bias`.", low=0, high=MAX_LOGIT_BIAS_ENTRIES
    )
    # Each becomes up to two sequences: with a space before it, and without.
    max_bad_words: int = limit(128, "Most strings in `bad_words`.", low=0, high=MAX_BAD_WORDS // 2)
    max_bad_word_chars: int = limit(256, "Longest string in `bad_words`, in characters.")
    max_allowed_token_ids: int = limit(4096, "Most ids in `allowed_token_ids`.", low=0, high=MAX_ALLOWED_TOKEN_IDS)
    max_tools: int = limit(128, "Most tools of a chat.", low=0)
    max_metadata: int = limit(16, "Most entries of `metadata`, which is OpenAI's limit.", low=0)
    max_template_variables: int = limit(256, "Most entries of `chat_template_kwargs`.", low=0)
    max_logprobs: int = limit(
        MAX_LOGPROBS, "Most alternatives with their log-probability for each token.", low=0, high=MAX_LOGPROBS
    )
    max_prompt_logprobs: int = limit(
        MAX_LOGPROBS, "The same for each token of the prompt: `prompt_logprobs`.", low=0, high=MAX_LOGPROBS
    )

    def __post_init__(self) -> None:
        require_accepted(self)
