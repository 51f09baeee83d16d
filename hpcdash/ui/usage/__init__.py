"""Usage on the screen: the report of a span, shares, limits and reservations."""
