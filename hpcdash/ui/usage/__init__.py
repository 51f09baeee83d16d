"""Usage: the report of a span."""
