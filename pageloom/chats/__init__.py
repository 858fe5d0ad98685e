"""A chat as text: its messages and tools become a prompt, and its answer is read. For gateway and `LLM` alike."""
