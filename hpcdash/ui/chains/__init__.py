"""Job chains on the screen."""
