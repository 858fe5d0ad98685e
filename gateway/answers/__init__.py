"""A request at the engine: its streams, the text of its choices, and the answers made of them."""
