"""Tools of an assistant: the one-shot commands, and actions that a person accepts."""
