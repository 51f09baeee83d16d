"""From the command line to the app or a one-shot command; the only place that builds concrete parts."""
