"""Jobs on the screen: the table, one job, its script, history, triage, and the keys that act on
them.
"""
