"""Text <-> token ids, from a folder's tokenizer.json or a GGUF file, with `tokenizers` alone: importing
transformers for it would load torch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import tokenizers

from pageloom import gguf_tokenizer
from pageloom.errors import ModelLoadError
from pageloom.gguf_file import read_gguf
from pageloom.model_files import ModelFiles
from pageloom.special_text import SpecialText

DEFAULT_TEMPLATE = "default"
TOOL_USE_TEMPLATE = "tool_use"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """A model's tokenizer and the chat templates that came with it ({"default": source, name: source}).

    `special_tokens` names them as chat templates see them: {"bos_token": "<s>", ...}.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str],
        chat_templates: Mapping[str, str],
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        # The bytes a token adds to a text: part of a character, whole characters, or nothing. Called for each token of
        # each stream, so it is no function of Python's.
        self.token_bytes: Callable[[int], bytes] = _TokenBytes(backend).__getitem__
        self.special_tokens: Mapping[str, str] = MappingProxyType(dict(special_tokens))
        self.chat_templates: Mapping[str, str] = MappingProxyType(dict(chat_templates))
        self.special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )

    @cached_property
    def vocab_size(self) -> int:
        """Ids with a spelling; a model's logits may be wider."""
        return self._backend.get_vocab_size()

    @cached_property
    def special_ids_by_text(self) -> Mapping[str, int]:
        """Special tokens as a text has them; empty texts are left out."""
        return MappingProxyType({text: id for id in sorted(self.special_ids) if (text := self.token(id))})

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """`add_special_tokens` frames the text as the model wants it, such as with a leading BOS."""
        # The batch call is the one that releases the GIL, so a long prompt leaves the event loop running.
        return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    @cached_property
    def special_text(self) -> SpecialText:
        return SpecialText(self.special_ids_by_text)

    def encode_prompt(self, prompt: str, *, add_special_tokens: bool) -> list[int]:
        """The same for a prompt in which `special_text` has marked what must stay text."""
        first, *others = self.special_text.cut(prompt)
        token_ids = self.encode(first, add_special_tokens=add_special_tokens)
        for encoding in self._backend.encode_batch_fast(others, add_special_tokens=False) if others else ():
            token_ids += encoding.ids
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of a whole sequence; see `detokenizer.py` for one that still grows."""
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str:
        """The vocabulary's spelling of a token, such as "Ġhello"; empty for an id without one."""
        return self._backend.id_to_token(token_id) or ""

    def take_special_tokens_for_text(self) -> None:
        """From now on `encode` takes the spelling of a special token for the text that it is."""
        self._backend.encode_special_tokens = True

    @cached_property
    def longest_token_len(self) -> int:
        """Characters of the longest token: a bound on the text that any number of tokens can hold."""
        return max(map(len, self._backend.get_vocab()))


class _TokenBytes(dict[int, bytes]):
    """Filled as tokens are asked for."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        super().__init__()
        self._backend = backend
        self._bytes_of = _byte_level_bytes if _is_byte_level(backend) else _sentencepiece_bytes

    def __missing__(self, token_id: int) -> bytes:
        found = self[token_id] = self._bytes_of(self._backend.id_to_token(token_id) or "")
        return found


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """Raises ModelLoadError if there is no tokenizer or it is of a kind that is not supported."""
    if files.is_gguf:
        metadata = read_gguf(files.path).metadata
        return Tokenizer(
            gguf_tokenizer.build_backend(metadata),
            special_tokens=gguf_tokenizer.special_tokens(metadata),
            chat_templates=_gguf_chat_templates(metadata),
        )
    config = read_json_object(files.path / "tokenizer_config.json")
    return Tokenizer(
        _backend_from_file(files.path / "tokenizer.json"),
        special_tokens=_named_special_tokens(files.path, config),
        chat_templates=_folder_chat_templates(files.path, config),
    )


def read_json_object(path: Path) -> dict[str, object]:
    """A JSON object from a file of the model; empty if there is no such file. Raises ModelLoadError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: is not a JSON object")
    return value


def _backend_from_file(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise ModelLoadError(f"model folder {path.parent} has no tokenizer.json")
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelLoadError(f"{path}: cannot be read: {error}") from None


def _named_special_tokens(folder: Path, config: Mapping[str, object]) -> dict[str, str]:
    values = {**read_json_object(folder / "special_tokens_map.json"), **config}
    named: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        value = values.get(name)
        # An older format spells a token as {"content": "<s>", "lstrip": ...}.
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            named[name] = content
    return named


def _folder_chat_templates(folder: Path, config: Mapping[str, object]) -> dict[str, str]:
    """chat_template.jinja and chat_templates/*.jinja win over tokenizer_config.json, as in transformers."""
    templates = _config_chat_templates(config.get("chat_template"))
    main = folder / "chat_template.jinja"
    if main.is_file():
        templates[DEFAULT_TEMPLATE] = main.read_text(encoding="utf-8")
    for path in sorted((folder / "chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    return templates


def _config_chat_templates(value: object) -> dict[str, str]:
    if isinstance(value, str):
        return {DEFAULT_TEMPLATE: value}
    if isinstance(value, list):
        return {str(entry["name"]): str(entry["template"]) for entry in value if isinstance(entry, dict)}
    return {}


def _gguf_chat_templates(metadata: Mapping[str, object]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    templates = {key.removeprefix(f"{prefix}."): str(metadata[key]) for key in metadata if key.startswith(f"{prefix}.")}
    if prefix in metadata:
        templates[DEFAULT_TEMPLATE] = str(metadata[prefix])
    return templates


def _is_byte_level(backend: tokenizers.Tokenizer) -> bool:
    """Whether tokens are spelled in the byte alphabet; otherwise they must be SentencePiece's."""
    if backend.decoder is None:
        raise ModelLoadError("the tokenizer has no decoder")
    spec = json.loads(backend.decoder.__getstate__())
    kinds = {step["type"] for step in spec["decoders"]} if spec["type"] == "Sequence" else {spec["type"]}
    if "ByteLevel" in kinds:
        return True
    if kinds & {"ByteFallback", "Metaspace"}:
        return False
    raise ModelLoadError(
        f"the tokenizer's decoder ({', '.join(sorted(kinds))}) is not supported; "
        "supported are ByteLevel, and Metaspace or ByteFallback"
    )


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 stands for itself, the others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_ALPHABET = _byte_alphabet()


def _byte_level_bytes(spelling: str) -> bytes:
    try:
        return bytes(_BYTE_ALPHABET[character] for character in spelling)
    except KeyError:
        # Added tokens are plain text.
        return spelling.encode()


def _sentencepiece_bytes(spelling: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(spelling)
    return bytes([int(byte[1], 16)]) if byte else spelling.replace("▁", " ").encode()
