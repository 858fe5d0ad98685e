"""The chat templates of real model families: equal to transformers' apply_chat_template, character for character and
token for token."""

import warnings
from typing import Any

import pytest

from pageloom.chat_template import ChatTemplate
from pageloom.errors import InvalidRequest
from pageloom.model_files import locate_model
from pageloom.tokenizer import Tokenizer, load_tokenizer
from tests.support.chat_samples import CHATS, DOCUMENTS, TEMPLATE_NAMES, TOOLS, template_source
from tests.support.tokenizer_reference import reference_tokenizer

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no-prompt": {"add_generation_prompt": False},
    "tools": {"tools": TOOLS},
    "documents": {"documents": DOCUMENTS},
    "tools-and-documents": {"tools": TOOLS, "documents": DOCUMENTS},
    "no-thinking": {"variables": {"enable_thinking": False}},
    "thinking": {"variables": {"enable_thinking": True}, "tools": TOOLS},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(locate_model(""))


def test_all_families_are_here():
    assert len(TEMPLATE_NAMES) == 36


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_prompts_equal_transformers(name: str, tokenizer: Tokenizer):
    source = template_source(name)
    template = ChatTemplate(source, tokenizer.special_tokens)
    num_equal = 0
    for chat_name, chat in CHATS.items():
        for option_name, options in OPTIONS.items():
            expected = theirs(source, chat, **options)
            if expected is None:
                with pytest.raises(InvalidRequest):
                    template.render(chat, **{"add_generation_prompt": True, **options})
                continue
            text, token_ids = expected
            ours = template.render(chat, **{"add_generation_prompt": True, **options})
            assert ours == text, (chat_name, option_name)
            assert tokenizer.encode(ours, add_special_tokens=False) == token_ids, (chat_name, option_name)
            num_equal += 1
    assert num_equal >= len(OPTIONS), "a template that refuses everything compares nothing"


def theirs(source: str, chat: list[dict[str, Any]], **options: Any) -> tuple[str, list[int]] | None:
    """What transformers makes of it; None if the template refuses the messages."""
    tokenizer = reference_tokenizer()
    options = {"add_generation_prompt": True, **options, **options.get("variables", {})}
    options.pop("variables", None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = tokenizer.apply_chat_template(chat, chat_template=source, tokenize=False, **options)
    except Exception:
        return None
    assert isinstance(text, str)
    return text, tokenizer(text, add_special_tokens=False)["input_ids"]
