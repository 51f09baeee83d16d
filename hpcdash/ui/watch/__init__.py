"""Alerts on the screen."""
