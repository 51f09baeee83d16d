"""The form of a new submission, the script it makes beside it, and what follows."""
