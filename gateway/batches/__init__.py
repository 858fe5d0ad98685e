"""Batch files: requests that are uploaded together, answered when there is time, and downloaded together."""
