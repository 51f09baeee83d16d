"""What is claimed about speed, runnable: `make bench`."""
