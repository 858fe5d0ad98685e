"""The engine from Python, without HTTP: `LLM` for lists of prompts, `AsyncLLM` for streams."""
