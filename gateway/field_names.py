"""What is a field of a chat request called where another API was asked? For errors that name it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from pageloom.errors import RequestError


@contextmanager
def renamed_fields(names: Mapping[str, str]) -> Generator[None]:
    """Errors that name a field of `names`, or a part of one, name that which the caller has sent instead."""
    try:
        yield
    except RequestError as error:
        found = [name for name in names if error.param is not None and _is_part_of(error.param, name)]
        if error.param is None or not found:
            raise
        name = max(found, key=len)
        message = error.message.replace(name, names[name])
        raise type(error)(message, param=names[name] + error.param[len(name) :]) from None


def _is_part_of(param: str, name: str) -> bool:
    return param.startswith(name) and param[len(name) : len(name) + 1] in ("", ".", "[", "/")
