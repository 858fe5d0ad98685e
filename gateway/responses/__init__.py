"""OpenAI's Responses API over the same jobs as chat completions."""
