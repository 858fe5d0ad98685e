"""The options that a gateway has for files and batches, added to the commands that start one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from pageloom import config
from pageloom import options as opt

_OPTIONS: tuple[tuple[str, Any, Any], ...] = (
    ("batch_dir", opt.BatchDir, None),
    ("batch_concurrency", opt.BatchConcurrency, config.DEFAULT_BATCH_CONCURRENCY),
    ("max_file_bytes", opt.MaxFileBytes, config.DEFAULT_MAX_FILE_BYTES),
    ("max_stored_files", opt.MaxStoredFiles, config.DEFAULT_MAX_STORED_FILES),
    ("max_stored_file_bytes", opt.MaxStoredFileBytes, config.DEFAULT_MAX_STORED_FILE_BYTES),
    ("file_ttl", opt.FileTtl, config.DEFAULT_FILE_TTL_S),
)


def takes_batch_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options besides its own; their values are in its context."""
    signature = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation, default in _OPTIONS
    ]

    @wraps(command)
    def run(**params: Any) -> None:
        command(**{name: value for name, value in params.items() if name in signature.parameters})

    # Where typer looks for the options.
    vars(run)["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), *added])
    return run
