"""Launches, logs and jobs over HTTP, for programs."""
