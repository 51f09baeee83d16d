# Prints for each argument the real path of that folder, or nothing, and a NUL.
# shellcheck shell=sh
for folder in "$@"; do
  (cd -P -- "$folder" 2>/dev/null && path=$(pwd -P && echo .) && printf %s "${path%??}")
  printf '\000'
done
