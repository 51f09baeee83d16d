"""A shared pool on the screen."""
