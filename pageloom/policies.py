"""By which rules does the engine decide? The choices an operator has, shared by command line and services."""

from __future__ import annotations

from enum import StrEnum


class SchedulingPolicy(StrEnum):
    """Who in the queue goes first.

    `fcfs`: who came first. `priority`: the lower `priority` number, and among equals who came first; waiting
    outweighs priority in time. `fair`: the tenant that was served fewest tokens, and among its requests as
    `priority` does; with one tenant the two are the same.
    """

    fcfs = "fcfs"
    priority = "priority"
    fair = "fair"


class Pooling(StrEnum):
    """How one vector is made of a prompt's hidden states, those after the model's final norm.

    `last`: that of the last token. `mean`: the mean over all tokens.
    """

    last = "last"
    mean = "mean"


class Placement(StrEnum):
    """Which worker a request goes to.

    `cache_aware`: where its cached prefix and the load leave the least to compute. `least_loaded`: where the
    load does. `round_robin`: in turn.
    """

    cache_aware = "cache-aware"
    least_loaded = "least-loaded"
    round_robin = "round-robin"
