"""State of hpcdash on this machine between runs."""
