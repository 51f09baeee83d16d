"""Logs on the screen: streams that grow, are paged, searched and gone through by time."""
