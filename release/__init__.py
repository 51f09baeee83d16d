"""What makes the packages: the build's hook, man pages, the single file."""
