"""What jobs use, on the screen."""
