# unstaged_file [PATTERN …]: prints a file of a launch's folder that was neither staged nor is a log, nor of these
# patterns, or that was staged and is not as it was. Logs have the names that scripts give them: what a job writes to
# predictions.out is its result. What was staged is named twice or more, the rest once; a line break in a name would make
# two of it.
# shellcheck shell=sh
unstaged_file() {
  for pattern do
    set -- "$@" ! -path "$pattern"
    shift
  done
  {
    find . -name '*[[:cntrl:]]*' | sed 's/.*/a name with a control character/' | head -n 1
    {
      cut -c 67- SHA256SUMS
      cut -c 67- SHA256SUMS
      find . ! -type d ! -path ./SHA256SUMS "$@" ! -path '*/__pycache__/*' | cut -c 3-
    } | sort | uniq -u | grep -vE '^(job([.][0-9]+)?|[0-9]+(_[0-9]+)?)([.]rank-[0-9]+)?[.](out|err)$' | head -n 1
    sha256sum --quiet -c SHA256SUMS 2>&1 | head -n 1
  } | head -n 1
}
