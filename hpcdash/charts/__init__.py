"""Charts as lines of styled text, for the dashboard and for a terminal: from series of runs to braille letters."""
