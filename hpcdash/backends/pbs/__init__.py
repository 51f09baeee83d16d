"""PBS by its own commands: OpenPBS, PBS Professional and Torque."""
