"""The embedded queue as a backend: driven by its own command line, as a scheduler is by its
commands.
"""
