# $2 is the run's name. What was begun a day ago or more and never handed over goes.
# shellcheck shell=sh
find . -mindepth 1 -maxdepth 1 -name '.[0-9]*' -type d -mtime +0 -exec rm -rf -- '{}' +
mkdir -m 700 -- "./.$2" || exit 19
