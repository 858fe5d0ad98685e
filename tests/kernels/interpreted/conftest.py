"""These tests run kernels on CPU tensors, which works only in a process that imported Triton with TRITON_INTERPRET=1.

`tests/kernels/test_interpreted.py` starts that process; a run without the variable leaves this folder alone.
"""

import os

import pytest
import torch

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(autouse=True)
def unwritten_is_nan(monkeypatch):
    """What a kernel leaves unwritten must not pass for a result."""
    monkeypatch.setattr(torch, "empty", lambda shape, **kind: torch.full(shape, torch.nan, **kind))
    monkeypatch.setattr(torch, "empty_like", lambda like: torch.full_like(like, torch.nan))
