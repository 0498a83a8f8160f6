"""Ways to make a conversation smaller. Pure: a strategy describes its slow calls and reads their
replies."""
