"""Metrics of trainings: read from logs, joined over restarts, judged, drawn."""
