"""How big a conversation is, when a compaction is due, where to cut, and what a history is called."""
