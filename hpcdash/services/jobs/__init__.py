"""Jobs: what is known of one, what became of it, and what can be done to it."""
