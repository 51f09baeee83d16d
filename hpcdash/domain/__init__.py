"""Types of jobs, nodes and queues for every scheduler: schema, states, units, filters, folding.

Pure.
"""
