"""Speculative decoding in the worker: tokens are guessed cheaply, and the model verifies several in one step."""
