"""Charts of metrics on the screen."""
