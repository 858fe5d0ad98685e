"""Benchmarks in virtual time: what paging, prefix caching, placement and fairness are worth, without a GPU."""
