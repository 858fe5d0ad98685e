"""The form of an answer as a grammar: from JSON schemas, regular expressions and grammars to what the engine takes."""
