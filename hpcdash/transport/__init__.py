"""The only way to a cluster: run a command there, stream one, and ask the person what a login node
wants to know.
"""
