"""Ports of running jobs on this machine: the relay on the node, the listener here, the record of
both.
"""
