"""Tidegate in process: transports for the openai and anthropic packages, and tools for whoever keeps the messages."""
