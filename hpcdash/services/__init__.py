"""What the app, the command line and the Python API do for a person, a feature a folder.

Async; draws nothing.
"""
