"""Tidegate keeps an LLM agent's conversation inside its model's context window."""

__version__ = "0.1.0"
