"""The C structs of src/kernels.h, src/row_kernels.h, src/experts.h and src/model.h, field by field."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_bool, c_float, c_int, c_int32, c_int64, c_void_p


class AttentionShape(Structure):
    _fields_ = (("num_heads", c_int), ("num_kv_heads", c_int), ("head_dim", c_int), ("scale", c_float))


class AttentionBatch(Structure):
    _fields_ = (
        ("num_seqs", c_int),
        ("query_start", c_void_p),
        ("seq_lens", c_void_p),
        ("block_tables", c_void_p),
        ("table_stride", c_int),
        ("block_size", c_int),
    )


class RotaryWrite(Structure):
    _fields_ = (
        ("num_heads", c_int),
        ("num_kv_heads", c_int),
        ("head_dim", c_int),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("positions", c_void_p),
        ("slot_mapping", c_void_p),
        ("num_rows", c_int64),
    )


class Linear(Structure):
    _fields_ = (("matrix", c_void_p), ("bias", c_void_p))


class Experts(Structure):
    _fields_ = (
        ("num_experts", c_int32),
        ("experts_per_token", c_int32),
        ("normalize_weights", c_bool),
        ("router", c_void_p),
        ("gate_up", POINTER(c_void_p)),
        ("down", POINTER(c_void_p)),
        ("shared_gate_up", c_void_p),
        ("shared_down", c_void_p),
        ("shared_gate", c_void_p),
    )


class Layer(Structure):
    _fields_ = (
        ("attention_norm", c_void_p),
        ("qkv", Linear),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("output", Linear),
        ("mlp_norm", c_void_p),
        ("experts", POINTER(Experts)),
        ("gate_up", Linear),
        ("down", Linear),
    )


class ModelSpec(Structure):
    _fields_ = (
        ("num_layers", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("hidden_size", c_int64),
        ("intermediate_size", c_int64),
        ("rms_norm_eps", c_float),
        ("layers", POINTER(Layer)),
        ("embedding", c_void_p),
        ("head", c_void_p),
        ("norm", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
    )


class StepInputs(Structure):
    _fields_ = (
        ("num_rows", c_int64),
        ("token_ids", c_void_p),
        ("positions", c_void_p),
        ("slot_mapping", c_void_p),
        ("num_outputs", c_int64),
        ("output_rows", c_void_p),
        ("attention", AttentionBatch),
        ("num_taps", c_int64),
        ("tap_layers", POINTER(c_int32)),
        ("taps", c_void_p),
    )
