"""From a request for resources to a batch script, for Slurm and PBS. Pure: runs nothing, asks nothing."""
