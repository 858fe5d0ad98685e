"""An environment of its own for each client: a virtual environment, or a folder of npm packages, made once and kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
INSTALL_TIMEOUT_S = 600.0
_COMPLETE = "complete"


class CannotInstallError(Exception):
    """What the installer said last."""


def cache_folder() -> Path:
    chosen = os.environ.get("PAGELOOM_CLIENTS_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "pageloom-clients"


def python_environment(name: str, *, lends_packages: bool = False) -> Path:
    """The interpreter of the virtual environment of requirements/NAME.txt, which pins all of it.

    With `lends_packages` what it lacks is taken from the environment that runs this: torch is too large to have
    twice. Raises CannotInstallError.
    """
    pinned = REQUIREMENTS / f"{name}.txt"
    folder = cache_folder() / f"{name}-{_digest(pinned, sys.version, sys.prefix if lends_packages else '')}"
    interpreter = folder / "bin" / "python"
    with _made_once(folder) as missing:
        if missing:
            venv.create(folder, with_pip=False, symlinks=True)
            # pip of this environment: installing one in each would take as long as the clients do.
            pip = [sys.executable, "-m", "pip", "--python", str(interpreter), "--disable-pip-version-check"]
            _install(
                [*pip, "install", "--quiet", "--no-deps", "--no-compile", "--requirement", str(pinned)], cwd=folder
            )
            if lends_packages:
                _lend_packages(interpreter)
    return interpreter


def node_environment(name: str) -> Path:
    """The node_modules folder of requirements/NAME/package-lock.json. Raises CannotInstallError."""
    packages = REQUIREMENTS / name
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        raise CannotInstallError("there is no Node.js with npm here")
    folder = cache_folder() / f"{name}-{_digest(packages / 'package-lock.json')}"
    with _made_once(folder) as missing:
        if missing:
            shutil.copytree(packages, folder, dirs_exist_ok=True)
            _install(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder)
    return folder / "node_modules"


@contextmanager
def _made_once(folder: Path) -> Iterator[bool]:
    """Whether the folder is still to be filled; it counts as filled if the block ends well. Others wait."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _COMPLETE).exists():
            yield False
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield True
        (folder / _COMPLETE).touch()


def _install(command: list[str], *, cwd: Path) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise CannotInstallError(f"{command[0]} took more than {INSTALL_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        raise CannotInstallError(done.stderr.strip()[-2000:])


def _lend_packages(interpreter: Path) -> None:
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    theirs = subprocess.run([interpreter, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    # A .pth file's folders come after the environment's own.
    (Path(theirs) / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")


def _digest(pinned: Path, *other: str) -> str:
    text = "\0".join((pinned.read_text(), *other))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
