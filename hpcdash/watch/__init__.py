"""Watchdogs: rules that look at snapshots, alerts that are told once, and notifiers that tell them."""
