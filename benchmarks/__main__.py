"""`python -m benchmarks`: every benchmark, one after the other."""

from __future__ import annotations

from benchmarks import dashboard, log_keys, logs, parse, usage_report

parse.main()
usage_report.main()
logs.main()
log_keys.main()
dashboard.main(list(dashboard.DEFAULT_JOBS), 0)
