"""How does a class of limits say what each of them bounds? Settings of whole numbers, a flag and an environment
variable each."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from pageloom.errors import InvalidConfig
from pageloom.setting_checks import flag_name

MANY = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedLimit:
    """A field of such a class: what it bounds, and what values it can have."""

    name: str
    default: int
    what: str
    low: int
    high: int


def limit(default: int, what: str, *, low: int = 1, high: int = MANY) -> Any:
    """The field of a frozen dataclass."""
    return field(default=default, metadata={"default": default, "what": what, "low": low, "high": high})


def described_limits(kind: type[Any]) -> tuple[DescribedLimit, ...]:
    return tuple(DescribedLimit(name=entry.name, **entry.metadata) for entry in fields(kind))


def require_accepted(limits: Any) -> None:
    """Raises InvalidConfig, naming the flag of the first limit that is not between its bounds."""
    for described in described_limits(type(limits)):
        value = getattr(limits, described.name)
        if not described.low <= value <= described.high:
            flag = flag_name(described.name)
            raise InvalidConfig(f"{flag} must be between {described.low} and {described.high}, not {value}")
