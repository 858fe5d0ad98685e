"""The scheduler core in virtual time: traces in, latencies and memory use out, no GPU and no waiting."""
