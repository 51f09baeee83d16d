"""`python -m hpcdash` is `hpcdash`."""

from hpcdash.cli.main import main

main()
