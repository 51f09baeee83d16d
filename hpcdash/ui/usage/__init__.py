"""Usage on the screen: shares, limits, reservations, and what was used."""
