"""On which machine, and when, were figures taken? A figure without its machine says nothing."""

import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that this process runs on, and the time (UTC) at which it was described."""

    cpu: str
    num_cores: int
    memory_bytes: int
    gpus: tuple[str, ...]
    system: str
    python: str
    date: str

    @classmethod
    def describe(cls) -> Self:
        return cls(
            cpu=_cpu_model(),
            num_cores=len(os.sched_getaffinity(0)),
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            gpus=_gpus(),
            system=f"{platform.system()} {platform.release()}",
            python=platform.python_version(),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def __str__(self) -> str:
        gpus = "".join(f", {gpu}" for gpu in self.gpus)
        return f"{self.cpu}, {self.num_cores} cores, {self.memory_bytes / 2**30:.0f} GiB{gpus}, {self.date}"

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def _cpu_model() -> str:
    """The name alone does not tell apart what some hypervisors call "AMD EPYC", so family and model go with it."""
    facts: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())
    name = facts.get("model name", platform.machine())
    return f"{name} (family {facts['cpu family']}, model {facts['model']})" if "cpu family" in facts else name


def _gpus() -> tuple[str, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    query = [program, "--query-gpu=name", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    return tuple(answer.stdout.split("\n")[:-1]) if answer.returncode == 0 else ()
