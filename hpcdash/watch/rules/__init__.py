"""The rules: each takes snapshots, facts and its settings, and gives findings; none reads or asks anything itself."""
