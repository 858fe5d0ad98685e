"""What importing the kernels does to a process: no Triton on a CPU worker, nothing in the way of other libraries."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pageloom_kernels


def test_kernels_is_not_our_package():
    """transformers probes `kernels`, which is Hugging Face's, and breaks if it finds another package there."""
    spec = importlib.util.find_spec("kernels")
    folder = Path(pageloom_kernels.__file__).parents[1]
    assert spec is None or spec.origin is None or folder not in Path(spec.origin).parents


def test_a_cpu_step_does_not_load_triton():
    script = (
        "import sys, torch; from pageloom_kernels import rms_norm; "
        "rms_norm(torch.ones(1, 8), torch.ones(8), eps=1e-5); sys.exit('triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
