"""The bash that generated batch scripts of all schedulers share. Pure."""
