"""From a parsed request to what the engine is asked: prompts, sampling parameters, grammar."""
