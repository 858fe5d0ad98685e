"""The options that a gateway has for files and batches, added to the commands that start one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pageloom import config
from pageloom import options as opt

_OPTIONS: tuple[tuple[str, Any, object], ...] = (
    ("batch_dir", opt.BatchDir, None),
    ("batch_concurrency", opt.BatchConcurrency, config.DEFAULT_BATCH_CONCURRENCY),
    ("max_file_bytes", opt.MaxFileBytes, config.DEFAULT_MAX_FILE_BYTES),
    ("max_stored_files", opt.MaxStoredFiles, config.DEFAULT_MAX_STORED_FILES),
    ("max_stored_file_bytes", opt.MaxStoredFileBytes, config.DEFAULT_MAX_STORED_FILE_BYTES),
    ("file_ttl", opt.FileTtl, config.DEFAULT_FILE_TTL_S),
)


def takes_batch_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options besides its own; their values are in its context."""
    return opt.with_options(command, _OPTIONS)
