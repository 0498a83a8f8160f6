"""Context."""
