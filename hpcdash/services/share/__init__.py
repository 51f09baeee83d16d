"""Sharing a pool of nodes in slices of time: who runs next, simulated and for real."""
