"""The dialogs of kill and save switches."""
