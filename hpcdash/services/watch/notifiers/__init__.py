"""Ways to send an alert, one a file; no error holds a secret."""
