"""A `tokenizers` pipeline from the vocabulary inside a GGUF file, which carries no tokenizer.json.

Two kinds exist: byte-level BPE ("gpt2"), whose text splitting the file only names, and SentencePiece
BPE ("llama"), whose merges follow from the scores. Where the file names a splitting, it is the one of
the model's own tokenizer.json, because that is what the model was trained with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pageloom.errors import ModelLoadError

CONTROL_TOKEN, USER_DEFINED_TOKEN = 3, 4

_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Splitting:
    """How a byte-level vocabulary cuts text before merging. `ignore_merges` takes a whole piece that
    is a token as it is, even if no merges lead to it."""

    pattern: str = _GPT2_SPLIT
    single_digits: bool = False
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False


_GPT2 = _Splitting()
_SINGLE_DIGITS = _Splitting(single_digits=True)
_LLAMA3 = _Splitting(pattern=_LLAMA3_SPLIT, ignore_merges=True, add_bos=True)
_QWEN2 = _Splitting(pattern=_QWEN2_SPLIT, nfc=True)
# llama.cpp's names, for `tokenizer.ggml.pre`.
_SPLITTINGS: Mapping[str, _Splitting] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "exaone": _SINGLE_DIGITS,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


def build_backend(metadata: Mapping[str, object]) -> Tokenizer:
    """Raises ModelLoadError if the vocabulary is missing, inconsistent, or of a kind that is not supported."""
    model = metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        backend, add_bos = _byte_level(metadata)
    elif model == "llama":
        backend, add_bos = _sentencepiece(metadata), True
    else:
        raise ModelLoadError(f"the GGUF file's tokenizer {model!r} is not supported; supported are 'gpt2' and 'llama'")
    _add_marked_tokens(backend, metadata)
    backend.post_processor = _frame(metadata, add_bos)
    return backend


def special_tokens(metadata: Mapping[str, object]) -> dict[str, str]:
    """Named special tokens as chat templates see them: {"bos_token": "<s>", ...}."""
    tokens = string_array(metadata, "tokenizer.ggml.tokens")
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for key, name in names.items()}
    return {
        name: tokens[token_id]
        for name, token_id in ids.items()
        if isinstance(token_id, int) and 0 <= token_id < len(tokens)
    }


def string_array(metadata: Mapping[str, object], key: str) -> list[str]:
    """Raises ModelLoadError unless the entry is a non-empty array of strings."""
    value = metadata.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise ModelLoadError(f"the GGUF file's {key!r} is missing or not an array of strings")
    return value


def _byte_level(metadata: Mapping[str, object]) -> tuple[Tokenizer, bool]:
    name = metadata.get("tokenizer.ggml.pre", "default")
    splitting = _SPLITTINGS.get(str(name))
    if splitting is None:
        raise ModelLoadError(
            f"the GGUF file's pre-tokenizer {name!r} is not supported; supported are {', '.join(sorted(_SPLITTINGS))}"
        )
    merges = [_pair(merge) for merge in string_array(metadata, "tokenizer.ggml.merges")]
    backend = _bpe(_vocabulary(metadata), merges, ignore_merges=splitting.ignore_merges)
    pieces = [pre_tokenizers.Digits(individual_digits=True)] if splitting.single_digits else []
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *pieces,
            pre_tokenizers.Split(Regex(splitting.pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    if splitting.nfc:
        backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    return backend, splitting.add_bos


def _sentencepiece(metadata: Mapping[str, object]) -> Tokenizer:
    vocabulary = _vocabulary(metadata)
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(string_array(metadata, "tokenizer.ggml.tokens")):
        raise ModelLoadError("the GGUF file's 'tokenizer.ggml.scores' do not match its tokens")
    prefix_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    backend = _bpe(vocabulary, _merges_by_score(vocabulary, scores), byte_fallback=True, fuse_unk=True)
    scheme = "first" if prefix_space else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    strip = [decoders.Strip(content=" ", left=1)] if prefix_space else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend


def _merges_by_score(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose result scores best; ties go to the shorter left part, as in
    transformers' `generate_merges`."""
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, token_id in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-scores[token_id], -len(left), -len(right), left, right))
    ranked.sort(key=lambda entry: entry[:3])
    return [(left, right) for *_, left, right in ranked]


def _bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: bool) -> Tokenizer:
    try:
        return Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **options))
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelLoadError(f"the GGUF file's vocabulary and merges do not fit together: {error}") from None


def _vocabulary(metadata: Mapping[str, object]) -> dict[str, int]:
    # Bytes that are not UTF-8 arrive as surrogates, which the Rust side cannot take.
    return {
        token.encode("utf-8", "surrogateescape").decode("utf-8", "replace"): token_id
        for token_id, token in enumerate(string_array(metadata, "tokenizer.ggml.tokens"))
    }


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not space:
        raise ModelLoadError(f"the GGUF file's merge {merge!r} is not two tokens")
    return left, right


def _add_marked_tokens(backend: Tokenizer, metadata: Mapping[str, object]) -> None:
    kinds = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, list):
        return
    tokens = string_array(metadata, "tokenizer.ggml.tokens")
    marked = list(zip(tokens, kinds, strict=False))
    control = [AddedToken(token, normalized=False, special=True) for token, kind in marked if kind == CONTROL_TOKEN]
    user_defined = [AddedToken(token, normalized=False) for token, kind in marked if kind == USER_DEFINED_TOKEN]
    backend.add_special_tokens(control)
    backend.add_tokens(user_defined)


def _frame(metadata: Mapping[str, object], add_bos_default: bool) -> processors.TemplateProcessing:
    """Puts BOS before and EOS after a text, where the file says so."""
    named = special_tokens(metadata)
    bos = named.get("bos_token") if metadata.get("tokenizer.ggml.add_bos_token", add_bos_default) else None
    eos = named.get("eos_token") if metadata.get("tokenizer.ggml.add_eos_token", False) else None
    ids = {"bos_token": "tokenizer.ggml.bos_token_id", "eos_token": "tokenizer.ggml.eos_token_id"}
    return processors.TemplateProcessing(
        single=[token for token in (bos, "$A", eos) if token],
        pair=None,
        special_tokens=[
            (token, metadata[ids[name]]) for name, token in (("bos_token", bos), ("eos_token", eos)) if token
        ],
    )
