"""The parts that views are made of, one a file."""
