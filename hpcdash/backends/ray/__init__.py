"""Ray, by the HTTP API of its dashboard; tried with 2.60."""
