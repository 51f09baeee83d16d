# refuse_replaceable PATH: ends the shell with IS_REPLACEABLE of staging.py where others could put something else in its
# place. It calls `weak_spot`.
# shellcheck shell=sh
refuse_replaceable() {
  why=$(weak_spot "$1")
  [ -z "$why" ] && return
  echo "$why, so others could replace files that jobs run from $1" >&2
  exit 18
}
