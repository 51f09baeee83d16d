"""Logs of jobs: where they are, read by byte offset, searched, shown safely."""
