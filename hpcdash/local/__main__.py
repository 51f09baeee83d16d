"""`python -m hpcdash.local FOLDER COMMAND …`."""

import sys

from hpcdash.local.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
