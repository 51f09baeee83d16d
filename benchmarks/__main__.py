"""`python -m benchmarks`: every benchmark, one after the other."""

from __future__ import annotations

from benchmarks import dashboard, logs, parse

parse.main()
logs.main()
dashboard.main(list(dashboard.DEFAULT_JOBS))
