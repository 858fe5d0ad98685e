"""Which device and element type does the model run in?"""

from __future__ import annotations

import torch

from pageloom.errors import InvalidConfig

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def resolve_device(name: str, local_rank: int = 0) -> torch.device:
    """ "auto" is the GPU if there is one, of several ranks on this host a GPU for each. Raises InvalidConfig if "cuda"
    is asked for and missing, or if there are too few."""
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise InvalidConfig("--device cuda was asked for, but torch finds no CUDA device; use cpu or auto")
    if not has_cuda or name == "cpu":
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise InvalidConfig(f"each rank needs a GPU of its own, and this host shows {torch.cuda.device_count()}")
    device = torch.device("cuda", local_rank or torch.cuda.current_device())
    torch.cuda.set_device(device)
    return device


def resolve_dtype(name: str, stored: torch.dtype | None, device: torch.device, *, has_library: bool) -> torch.dtype:
    """The dtype that `name` asks for; "auto" decides by what is `stored` (None: quantized).

    "auto" keeps the checkpoint's dtype where the device computes in it at full speed. Otherwise, and
    for quantized weights, it is bfloat16 if the device has it in hardware, or if the model runs in the library
    of CPU kernels; else float32 on a CPU and float16 on a GPU. So float16 checkpoints run in bfloat16 or float32
    on a CPU.
    """
    if name != "auto":
        return _DTYPES[name]
    if device.type == "cuda":
        half = torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
        return half if stored is None or stored == torch.bfloat16 else stored
    if stored == torch.float32:
        return torch.float32
    return torch.bfloat16 if has_library or _cpu_has_bfloat16() else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    """The name under which configuration and ModelInfo know it."""
    return next(name for name, known in _DTYPES.items() if known == dtype)


def _cpu_has_bfloat16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))
