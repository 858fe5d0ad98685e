"""What a model wrote, read while it comes: thinking, content and tool calls. Pure."""
