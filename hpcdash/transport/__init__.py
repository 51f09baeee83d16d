"""Access to a cluster: run a command there, stream one, and prompt the person for a login node."""
