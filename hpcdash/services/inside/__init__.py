"""Running commands on the nodes of a running job: an answer, folded, and the Python stacks among
them.
"""
