"""One package a scheduler, all pure: which commands to run and how to read what they print."""
