"""The real servers that tests start for themselves and stop again."""
