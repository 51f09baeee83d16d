"""Services of the app, the command line and the Python API, a feature per folder.

Async; draws nothing.
"""
