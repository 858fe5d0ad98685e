"""Our tokenizer against transformers': the default GGUF, a folder, a SentencePiece GGUF, and files that are wrong."""

import json
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from pageloom.errors import ModelLoadError
from pageloom.model_files import ModelFiles, locate_model
from pageloom.tokenizer import Tokenizer, load_tokenizer
from tests.support.tokenizer_reference import from_gguf, reference_tokenizer

TEXTS = [
    "",
    " ",
    "The capital of France is Paris.",
    "  two  spaces   and\ttabs\n\n\nnewlines \r\n end ",
    "12345 3.14159 1,000,000 x2y3 ½ ² ٣ 一二三 Ⅷ",
    "a list:\n\n1. one\n\n22. two      7",
    "naïve café Ünïcödé ﬁ Straße İstanbul",
    "日本語のテキスト 한국어 العربية עברית हिन्दी ไทย",
    "😀 👨‍👩‍👧‍👦 🇫🇷🇩🇪 👍🏽 e\u0301 a\u0308\u0323",
    "def f(x: int) -> str:\n    return f\"{x!r:>10}\"  # comment\n\n\nif __name__ == '__main__':\n\tf(1)",
    "don't we'll I'M they'VE 's 't",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>x<|im_start",
    "\x00\x01\x7f\u200b\ufeff\u2028\ufffd",
    "https://example.org/a?b=c&d=%20#frag <html></html> $$ \\frac{a}{b} ___ *** ~~~ ```",
    "A" * 300 + " " * 70 + "\n" * 40,
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(locate_model(""))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("framed", [False, True])
def test_default_model_equals_transformers(tokenizer: Tokenizer, text: str, framed: bool):
    token_ids = tokenizer.encode(text, add_special_tokens=framed)
    assert token_ids == reference_tokenizer().encode(text, add_special_tokens=framed)
    for skip in (False, True):
        assert tokenizer.decode(token_ids, skip_special_tokens=skip) == reference_tokenizer().decode(
            token_ids, skip_special_tokens=skip
        )


@settings(max_examples=300)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_random_text_equals_transformers(text: str):
    tokenizer = load_once()
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert token_ids == reference_tokenizer().encode(text, add_special_tokens=False)
    # The vocabulary has no token for these bytes, and no unknown token: they vanish.
    expected = text.encode().translate(None, b"\x04\x06\x13\x14\x16\x1d\xf1\xf2")
    assert b"".join(map(tokenizer.token_bytes, token_ids)) == expected


def test_transformers_differs_from_the_model_only_in_space_before_digits(tokenizer: Tokenizer):
    """Pins the one deliberate difference, so that we notice when transformers takes it back."""
    reference = reference_tokenizer()
    splitting = reference.backend_tokenizer.pre_tokenizer
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    try:
        different = [
            text for text in TEXTS if reference.encode(text) != tokenizer.encode(text, add_special_tokens=True)
        ]
    finally:
        reference.backend_tokenizer.pre_tokenizer = splitting
    assert different == ["12345 3.14159 1,000,000 x2y3 ½ ² ٣ 一二三 Ⅷ", "a list:\n\n1. one\n\n22. two      7"]


def test_folder_equals_transformers(tmp_path: Path):
    reference_tokenizer().save_pretrained(tmp_path)
    tokenizer = load_tokenizer(ModelFiles(name="folder", path=tmp_path, is_gguf=False))
    for text in TEXTS:
        assert tokenizer.encode(text, add_special_tokens=True) == reference_tokenizer().encode(text)
    assert tokenizer.special_tokens == load_once().special_tokens
    assert tokenizer.chat_templates == load_once().chat_templates
    assert tokenizer.special_ids == load_once().special_ids


def test_sentencepiece_gguf_equals_transformers(tmp_path: Path):
    path = tmp_path / "spm.gguf"
    write_sentencepiece_gguf(path)
    tokenizer, reference = load_tokenizer(ModelFiles(name="spm", path=path, is_gguf=True)), from_gguf(path)
    for text in ["hello world", "  hello   world", "hello<|tool|>world</s>this is", "a é 世界 😀\n\tx", ""]:
        token_ids = tokenizer.encode(text, add_special_tokens=True)
        assert token_ids == reference.encode(text)
        assert token_ids[0] == 1, "one BOS"
        assert tokenizer.decode(token_ids, skip_special_tokens=True) == reference.decode(
            token_ids, skip_special_tokens=True
        )
    assert tokenizer.token_bytes(3 + 0xC3) == b"\xc3"


def test_special_tokens_and_templates_of_the_default_model(tokenizer: Tokenizer):
    assert tokenizer.special_tokens["eos_token"] == "<|im_end|>"
    assert tokenizer.special_ids == frozenset(range(17))
    assert list(tokenizer.chat_templates) == ["default"]
    assert tokenizer.token_bytes(10**6) == b""


def test_named_templates_in_a_folder(tmp_path: Path):
    reference_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    config |= {"chat_template": named, "bos_token": {"content": "<|im_start|>", "lstrip": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(ModelFiles(name="folder", path=tmp_path, is_gguf=False))
    assert tokenizer.chat_templates == {"default": "D", "tool_use": "T"}
    assert tokenizer.special_tokens["bos_token"] == "<|im_start|>"


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "has no tokenizer.json"),
        ({"tokenizer.json": "{"}, "cannot be read"),
        ({"tokenizer.json": "{}", "tokenizer_config.json": "[]"}, "is not a JSON object"),
    ],
)
def test_wrong_folder_is_one_clear_error(tmp_path: Path, files: dict[str, str], reason: str):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelLoadError, match=reason):
        load_tokenizer(ModelFiles(name="x", path=tmp_path, is_gguf=False))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokenizer.ggml.model": "bert"}, "tokenizer 'bert' is not supported"),
        ({"tokenizer.ggml.pre": "unheard-of"}, "pre-tokenizer 'unheard-of' is not supported"),
        ({"tokenizer.ggml.tokens": 5}, "'tokenizer.ggml.tokens' is missing or not an array of strings"),
        ({"tokenizer.ggml.merges": ["ab"]}, "merge 'ab' is not two tokens"),
        ({"tokenizer.ggml.merges": ["a zz"]}, "do not fit together"),
    ],
)
def test_wrong_gguf_vocabulary_is_one_clear_error(change: dict[str, object], reason: str):
    from pageloom.gguf_tokenizer import build_backend

    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }
    assert build_backend(metadata).encode("ab").ids == [2]
    with pytest.raises(ModelLoadError, match=reason):
        build_backend(metadata | change)


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "x  12345", ["x", " ", " 12345"]),
        ("smollm", "x  123", ["x", "  ", "1", "2", "3"]),
        ("llama-bpe", "x  12345\n\ny", ["x", " ", " ", "123", "45", "\n\n", "y"]),
        ("qwen2", "x  123\n\ny", ["x", " ", " ", "1", "2", "3", "\n\n", "y"]),
    ],
)
def test_text_splitting_by_name(pre: str, text: str, pieces: list[str]):
    from pageloom.gguf_tokenizer import build_backend

    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }
    splitter = build_backend(metadata).pre_tokenizer
    assert splitter is not None
    assert [text[start:end] for _, (start, end) in splitter.pre_tokenize_str(text)] == pieces


def load_once(cache: list[Tokenizer] = []) -> Tokenizer:  # noqa: B006
    if not cache:
        cache.append(load_tokenizer(locate_model("")))
    return cache[0]


def write_sentencepiece_gguf(path: Path) -> None:
    """A small Llama-2-like vocabulary: bytes, pieces with scores, and one user-defined token."""
    pieces = ["▁", *"helowrdtisaé世", "he", "ll", "hell", "hello", "▁hello", "▁w", "or", "ld", "orld", "▁world", "▁▁"]
    pieces += ["th", "is", "this", "▁this", "▁is", "▁a"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "<|tool|>"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(8)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [len(piece) - 100 - 0.01 * i for i, piece in enumerate(pieces)] + [0.0])
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * len(pieces), 4])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
