"""Those who tell: one file a way. Each sends a message or says why it could not, without a secret in its words."""
