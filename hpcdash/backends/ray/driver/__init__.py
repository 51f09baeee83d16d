"""The driver of a run on TPU slices: it runs inside the Ray cluster, with Ray and the standard
library alone.
"""
