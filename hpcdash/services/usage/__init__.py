"""Usage: the archive of ended runs, and how long jobs waited."""
