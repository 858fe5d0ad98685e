"""The GGUF header reader: right on a real file, clear on every broken one."""

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from pageloom.errors import ModelLoadError
from pageloom.gguf_file import read_gguf
from pageloom.model_files import locate_model


@pytest.fixture
def small_gguf(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_bool("flag", True)
    writer.add_array("tokens", ["a", "é", "🙂"])
    writer.add_array("scores", [1.0, 2.5])
    writer.add_tensor("first.weight", np.arange(64, dtype=np.float32).reshape(2, 32))
    writer.add_tensor("second.weight", np.ones((3, 4), dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_agrees_with_the_gguf_package_on_the_default_model():
    path = locate_model("").path
    ours, theirs = read_gguf(path), gguf.GGUFReader(path)
    assert {
        tensor.name: (tensor.data_offset, tensor.n_bytes, tuple(int(size) for size in reversed(tensor.shape)))
        for tensor in theirs.tensors
    } == {tensor.name: (tensor.offset, tensor.num_bytes, tensor.shape) for tensor in ours.tensors.values()}
    for name in ("llama.block_count", "llama.rope.freq_base", "general.architecture", "tokenizer.chat_template"):
        assert ours.metadata[name] == theirs.fields[name].contents()


def test_reads_every_kind_of_value(small_gguf: Path):
    file = read_gguf(small_gguf)
    assert file.metadata["llama.block_count"] == 2
    assert file.metadata["flag"] is True
    assert file.metadata["tokens"] == ["a", "é", "🙂"]
    assert file.metadata["scores"] == [1.0, 2.5]
    tensor = file.tensors["first.weight"]
    data = np.fromfile(small_gguf, np.float32, 64, offset=tensor.offset)
    assert tensor.shape == (2, 32)
    assert data.tolist() == list(range(64))


def test_every_truncation_is_an_error(small_gguf: Path):
    whole = small_gguf.read_bytes()
    last = max(tensor.offset + tensor.num_bytes for tensor in read_gguf(small_gguf).tensors.values())
    for length in range(0, last, 7):
        small_gguf.write_bytes(whole[:length])
        with pytest.raises(ModelLoadError, match=r"small\.gguf"):
            read_gguf(small_gguf)


def test_random_damage_never_crashes(small_gguf: Path):
    whole = small_gguf.read_bytes()
    rng = random.Random(5)
    num_refused = 0
    for _ in range(1500):
        damaged = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged) - 200)] = rng.randrange(256)
        small_gguf.write_bytes(damaged)
        try:
            file = read_gguf(small_gguf)
        except ModelLoadError:
            num_refused += 1
        else:
            assert all(tensor.offset + tensor.num_bytes <= len(whole) for tensor in file.tensors.values())
    assert num_refused > 500


@pytest.mark.parametrize(
    ("position", "data", "words"),
    [
        (0, b"GGML", "does not start with"),
        (4, struct.pack("<I", 9), "version is 9"),
        (8, struct.pack("<Q", 1 << 60), "number of tensors"),
        (16, struct.pack("<Q", 1 << 60), "number of metadata entries"),
    ],
)
def test_the_error_says_what_is_wrong(small_gguf: Path, position: int, data: bytes, words: str):
    damaged = bytearray(small_gguf.read_bytes())
    damaged[position : position + len(data)] = data
    small_gguf.write_bytes(damaged)
    with pytest.raises(ModelLoadError, match=words):
        read_gguf(small_gguf)


def test_overlapping_tensors_are_refused(small_gguf: Path):
    whole = bytearray(small_gguf.read_bytes())
    # The offset of the second tensor is the last field of its entry: name, 2 dimensions, type, offset.
    entry = whole.index(b"second.weight") + len(b"second.weight") + 4 + 16 + 4
    whole[entry : entry + 8] = struct.pack("<Q", 0)
    small_gguf.write_bytes(whole)
    with pytest.raises(ModelLoadError, match="overlaps"):
        read_gguf(small_gguf)
