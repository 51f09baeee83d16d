"""Charts of metrics: curves to braille or SVG. Pure."""
