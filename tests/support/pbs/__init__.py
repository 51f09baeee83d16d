"""A PBS of recordings: commands that answer as a real OpenPBS 23.06 did, in a folder that goes
first on PATH.
"""

from tests.support.pbs.cluster import COMMANDS, SCENES, StandIns

__all__ = ["COMMANDS", "SCENES", "StandIns"]
