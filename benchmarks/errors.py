"""The one way in which a benchmark fails: a message for the person who started it, and no figures."""


class BenchmarkError(Exception):
    """A server that cannot be reached, refuses a request, or does not do the work that was asked of it."""
