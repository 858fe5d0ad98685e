"""Pageloom: an LLM serving system. Importing this package never imports torch."""

__version__ = "0.1.0"
