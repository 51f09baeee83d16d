"""Submission: from a request to a batch script in its folder, to a job that is never submitted
twice.
"""
