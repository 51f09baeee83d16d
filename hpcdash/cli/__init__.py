"""Entry points from the command line; the only package that builds concrete parts.

All of hpcdash is loaded from this folder, whatever other copy PYTHONPATH names.
"""

import os

import hpcdash

# In a job of a launch the zip of hpcdash.job stands first on PYTHONPATH, and may be of another
# version: what belongs together is taken from one place.
_own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
hpcdash.__path__ = [_own, *(folder for folder in hpcdash.__path__ if folder != _own)]
