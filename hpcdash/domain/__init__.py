"""What jobs, nodes and queues are, whatever the scheduler: schema, states, units, filters, folding.

Pure.
"""
