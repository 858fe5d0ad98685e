"""The tensors of a GGUF file, dequantized, under the names and in the order of a Hugging Face checkpoint."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray
from torch import Tensor

from pageloom.errors import ModelLoadError
from pageloom.gguf_file import GgufFile, GgufTensor
from worker_svc.checkpoint import Part

ROPE_DIVISORS = "rope_freqs.weight"
_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# One tensor for all experts, [experts, rows, columns].
_EXPERTS_TENSOR = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.weight")
# Or one for each, in files of Mixtral from before llama.cpp had the former.
_EXPERT_TENSOR = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)\.(\d+)\.weight")
_PLAIN_DTYPES = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
# Where in a block of the types that a CPU multiplies as they are its half-precision scales lie.
_SCALE_OFFSETS = {
    GGMLQuantizationType.Q4_0: (0,),
    GGMLQuantizationType.Q4_1: (0, 2),
    GGMLQuantizationType.Q8_0: (0,),
    GGMLQuantizationType.Q4_K: (0, 2),
    GGMLQuantizationType.Q6_K: (208,),
}
# Rows are dequantized in pieces, so that loading never holds a large matrix in float32.
_PIECE_ELEMENTS = 1 << 20


class GgufWeights:
    """Implements checkpoint.Weights and checkpoint.QuantizedWeights. The file is mapped until this object is gone.

    `interleaved_heads` maps the names of projections to their number of heads, where the file keeps
    the two halves of each head's rotated dimensions interleaved: llama.cpp's converter writes
    "llama" models so, because its RoPE turns neighbouring dimensions.
    """

    def __init__(self, file: GgufFile, interleaved_heads: dict[str, int]) -> None:
        self.path = file.path
        self._file = file
        self._interleaved_heads = interleaved_heads
        # Copy on write, only because torch warns of arrays that cannot be written.
        self._data = np.memmap(file.path, np.uint8, mode="c")
        self._tensors: dict[str, GgufTensor] = {}
        for name, tensor in file.tensors.items():
            if name != ROPE_DIVISORS:
                self._tensors |= _by_hf_name(tensor)

    @property
    def names(self) -> Collection[str]:
        return self._tensors.keys()

    @property
    def dtype(self) -> torch.dtype | None:
        bytes_of: dict[int, int] = {}
        for tensor in self._tensors.values():
            bytes_of[tensor.ggml_type] = bytes_of.get(tensor.ggml_type, 0) + tensor.num_bytes
        most = max(bytes_of, key=bytes_of.__getitem__, default=None)
        return None if most is None else _PLAIN_DTYPES.get(GGMLQuantizationType(most))

    def num_bytes(self, name: str) -> int:
        return self._tensors[name].num_bytes

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def describe(self, name: str) -> str:
        return f"{self._file.path}: tensor {self._tensors[name].name}"

    def read(self, name: str, out: Tensor, part: Part | None = None) -> None:
        tensor = self._tensors[name]
        flat = out.view(-1, out.shape[-1])
        start = 0
        for piece in _dequantized(self._file, tensor, self._data, part):
            flat[start : start + len(piece)].copy_(torch.from_numpy(piece))
            start += len(piece)
        num_heads = self._num_interleaved_heads(name)
        if num_heads is not None:
            # A part is of whole heads.
            order = _uninterleaved(len(out), num_heads * out.shape[0] // tensor.shape[0])
            out.copy_(out[torch.from_numpy(order)])

    @property
    def ggml_types(self) -> Mapping[str, int]:
        return {name: tensor.ggml_type for name, tensor in self._tensors.items() if _is_matrix_of_blocks(tensor)}

    def read_blocks(self, name: str) -> NDArray[np.uint8]:
        tensor = self._tensors[name]
        rows = _rows(tensor, self._data)
        _check_scales(self.describe(name), tensor, rows)
        num_heads = self._num_interleaved_heads(name)
        return rows if num_heads is None else rows[_uninterleaved(len(rows), num_heads)]

    def _num_interleaved_heads(self, name: str) -> int | None:
        return self._interleaved_heads.get(name.rpartition(".")[0].rpartition(".")[2])


def read_rope_divisors(file: GgufFile) -> tuple[float, ...] | None:
    """The frequency divisors of Llama 3.1's RoPE, if the file has them."""
    tensor = file.tensors.get(ROPE_DIVISORS)
    if tensor is None:
        return None
    data = np.memmap(file.path, np.uint8, mode="r")
    return tuple(np.concatenate([piece.ravel() for piece in _dequantized(file, tensor, data)]).tolist())


def hf_name(name: str) -> str:
    """Hugging Face's name for a tensor; an unknown one stays as it is, for the loader to refuse."""
    match = _LAYER_TENSOR.fullmatch(name)
    if match is not None and match[2] in _LAYER_NAMES:
        return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"
    expert = _EXPERT_TENSOR.fullmatch(name)
    if expert is not None:
        return f"model.layers.{expert[1]}.mlp.experts.{expert[3]}.{expert[2]}_proj.weight"
    return _OUTER_NAMES.get(name, name)


def _by_hf_name(tensor: GgufTensor) -> dict[str, GgufTensor]:
    """The tensors that one of the file holds: each expert's matrix is one by itself."""
    experts = _EXPERTS_TENSOR.fullmatch(tensor.name)
    if experts is not None and len(tensor.shape) == 3:
        num_experts = tensor.shape[0]
        num_bytes = tensor.num_bytes // num_experts
        return {
            f"model.layers.{experts[1]}.mlp.experts.{index}.{experts[2]}_proj.weight": replace(
                tensor,
                name=f"{tensor.name}[{index}]",
                shape=tensor.shape[1:],
                offset=tensor.offset + index * num_bytes,
                num_bytes=num_bytes,
            )
            for index in range(num_experts)
        }
    if tensor.name.endswith(".ffn_gate_inp_shexp.weight") and len(tensor.shape) == 1:
        # A matrix of one output elsewhere.
        tensor = replace(tensor, shape=(1, *tensor.shape))
    return {hf_name(tensor.name): tensor}


def _uninterleaved(num_rows: int, num_heads: int) -> NDArray[np.intp]:
    """The order of rows that undoes LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py, in a weight or a bias."""
    return np.arange(num_rows).reshape(num_heads, -1, 2).swapaxes(1, 2).ravel()


def _is_matrix_of_blocks(tensor: GgufTensor) -> bool:
    return len(tensor.shape) == 2 and GGMLQuantizationType(tensor.ggml_type) in _SCALE_OFFSETS


def _rows(tensor: GgufTensor, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The tensor as it lies in `data`, the whole file: [rows, bytes]."""
    num_rows = math.prod(tensor.shape[:-1])
    return data[tensor.offset : tensor.offset + tensor.num_bytes].reshape(num_rows, -1)


def _check_scales(described: str, tensor: GgufTensor, rows: NDArray[np.uint8]) -> None:
    """Blocks are finite if their scales are: codes are whole numbers."""
    kind = GGMLQuantizationType(tensor.ggml_type)
    blocks = rows.reshape(-1, GGML_QUANT_SIZES[kind][1])
    for offset in _SCALE_OFFSETS[kind]:
        scales = np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.float16)
        if not np.isfinite(scales).all():
            raise ModelLoadError(f"{described} holds values that are not finite: it is damaged")


def _dequantized(
    file: GgufFile, tensor: GgufTensor, data: NDArray[np.uint8], part: Part | None = None
) -> Iterator[NDArray[np.float32]]:
    """The tensor's rows in float32, some at a time; `data` is the whole file. Of a part only the blocks that hold it
    are read."""
    rows, columns = _rows(tensor, data), slice(0, tensor.shape[-1])
    kind = GGMLQuantizationType(tensor.ggml_type)
    if part is not None and part.dim == len(tensor.shape) - 1:
        rows, columns = _block_columns(rows, kind, part)
    elif part is not None:
        rows = rows[part.start : part.stop]
    rows_per_piece = max(1, _PIECE_ELEMENTS // tensor.shape[-1])
    for start in range(0, len(rows), rows_per_piece):
        try:
            with np.errstate(all="ignore"):
                piece = dequantize(np.ascontiguousarray(rows[start : start + rows_per_piece]), kind)[:, columns]
        except NotImplementedError as error:
            raise ModelLoadError(f"{file.path}: tensor {tensor.name}: {error}") from None
        if not np.isfinite(piece).all():
            raise ModelLoadError(f"{file.path}: tensor {tensor.name} holds values that are not finite: it is damaged")
        yield piece


def _block_columns(rows: NDArray[np.uint8], kind: GGMLQuantizationType, part: Part) -> tuple[NDArray[np.uint8], slice]:
    """The blocks of each row that hold columns of `part`, and where in them these are."""
    num_elements, num_bytes = GGML_QUANT_SIZES[kind]
    first, last = part.start // num_elements, -(-part.stop // num_elements)
    offset = first * num_elements
    return rows[:, first * num_bytes : last * num_bytes], slice(part.start - offset, part.stop - offset)
