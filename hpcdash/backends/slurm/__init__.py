"""Slurm, by its own commands: squeue, sinfo, sacct, scontrol.

Text with explicit columns; JSON is many times dearer.
"""
