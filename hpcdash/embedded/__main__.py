"""`python -m hpcdash.embedded FOLDER COMMAND …`."""

import sys

from hpcdash.embedded.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
