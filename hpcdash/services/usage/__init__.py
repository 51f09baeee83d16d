"""What jobs use of what they were given."""
