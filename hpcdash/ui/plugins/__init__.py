"""A person's own commands: run from a row, with their output in a view."""
