"""Job logs as bytes: lines, colours, patterns in paths. Pure: nothing is read here."""
