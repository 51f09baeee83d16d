"""Files of jobs on a cluster: folders, copies to and from this machine, deletion."""
