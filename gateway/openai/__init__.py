"""OpenAI's shapes of requests and answers, and the encoders of the latter."""
