"""config.toml and REQUEST.toml: TOML to checked models, and a new cluster back into the file."""
