"""Watchdogs: rules over snapshots and logs, alerts that are announced once, notifiers."""
