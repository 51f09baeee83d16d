"""The rules: each takes snapshots, facts and its settings, and returns findings. Pure."""
