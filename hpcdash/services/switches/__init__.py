"""Kill and save switches of trainings: which file, set, cleared, and what came of it."""
