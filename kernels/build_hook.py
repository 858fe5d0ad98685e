"""Puts the CPU kernels into the wheel, and beside the sources for an editable install, if they can be compiled."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The build runs this file by its path.
sys.path.insert(0, str(Path(__file__).parent))
from compile_cpu import CannotCompile, compile_cpu_libraries


class CpuKernelsHook(BuildHookInterface[Any]):
    """Named by `hooks.custom` in pyproject.toml."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        try:
            compile_cpu_libraries()
        except CannotCompile as reason:
            self.app.display_warning(f"Without the CPU kernels, PyTorch computes: {reason}")
            return
        # The libraries are for one platform, but for every Python, because ctypes loads them.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
