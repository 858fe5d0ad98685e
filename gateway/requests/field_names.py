"""What is a field of a chat request called where another API was asked? For errors that name it."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from pydantic import ValidationError

from gateway.requests.job import Job
from gateway.requests.unserved_fields import UnservedField
from pageloom.errors import RequestError
from pageloom.field_errors import invalid_value

# Elsewhere a tool is itself what a chat has one level deeper.
_FUNCTION = re.compile(r"(tools\[\d+\])(?:\.function|\.custom)?\.(\w+)")


@contextmanager
def renamed_fields(names: Mapping[str, str]) -> Generator[None]:
    """Errors that name a field of `names`, or a part of one, name that which the caller has sent instead; "tools[].x"
    is a field of any tool. A chat request that is not valid is such an error."""
    try:
        yield
    except ValidationError as error:
        raise _renamed(invalid_value(error), names) from None
    except UnservedField:
        raise
    except RequestError as error:
        raise _renamed(error, names) from None


def renamed_job(job: Job, names: Mapping[str, str]) -> Job:
    """For errors that come up while it is answered."""
    return replace(job, grammar_field=names.get(job.grammar_field, job.grammar_field))


def _renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    if error.param is None:
        return error

    def of_tool(match: re.Match[str]) -> str:
        return f"{match[1]}.{names.get(f'tools[].{match[2]}', match[2])}"

    message, param = _FUNCTION.sub(of_tool, error.message), _FUNCTION.sub(of_tool, error.param)
    found = [name for name in names if _is_part_of(param, name)]
    if found:
        name = max(found, key=len)
        message, param = message.replace(name, names[name]), names[name] + param[len(name) :]
    return error if param == error.param else type(error)(message, param=param)


def _is_part_of(param: str, name: str) -> bool:
    return param.startswith(name) and param[len(name) : len(name) + 1] in ("", ".", "[", "/")
