"""Sample jobs of the demonstration: what they are, and how they are handed in.

Standard library alone.
"""
