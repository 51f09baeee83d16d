"""The views, one a file, each exporting VIEW."""
