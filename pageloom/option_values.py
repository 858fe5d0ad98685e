"""How is the text of an option read that is a size or an address?"""

from __future__ import annotations

import math
import os
import re

import typer

from pageloom.setting_checks import is_address

_SUFFIXES = {
    "": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4
}  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """Takes "2GiB", "512M", "8k" or a plain number (typer passes defaults through too). Raises typer.BadParameter."""
    match = _SIZE.fullmatch(str(text).strip())
    value = float(match[1]) * _SUFFIXES[(match[2] or "").lower()] if match else 0.0
    if not 1 <= value < math.inf:
        raise typer.BadParameter(f"{text!r} is not a size; write a number above 0 such as 8192, 8k, 512M or 2GiB")
    return int(value)


def parse_size_or_zero(text: str | int) -> int:
    """As `parse_size`, and 0. Raises typer.BadParameter."""
    return 0 if str(text).strip() == "0" else parse_size(text)


def parse_batch_paths(paths: list[str], input_file: str | None, output_file: str | None) -> tuple[str, str, str]:
    """IN, OUT and MODEL, "" for none, whether the files come by their options or before MODEL. Raises
    typer.BadParameter."""
    rest = paths
    if input_file is None and output_file is None and len(paths) > 1:
        input_file, output_file, *rest = paths
    if input_file is None or output_file is None or len(rest) > 1:
        raise typer.BadParameter("give two files, IN OUT or -i IN -o OUT, and after them MODEL if not the default")
    return input_file, output_file, rest[0] if rest else os.environ.get("PAGELOOM_MODEL", "")


def parse_address(text: str) -> str:
    """Takes "HOST:PORT" or "unix:/PATH". Raises typer.BadParameter."""
    if not is_address(text):
        raise typer.BadParameter(f"{text!r} is not an address; write HOST:PORT or unix:/PATH")
    return text
