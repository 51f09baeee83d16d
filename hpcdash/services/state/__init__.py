"""What hpcdash keeps on this machine between runs."""
