"""Modules that programs written for another platform import, put on their path by a command of
hpcdash.job alone.
"""
