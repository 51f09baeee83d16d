"""PBS by its own commands: OpenPBS and PBS Professional, Torque, and Slurm's commands by Torque's
names.
"""
