# For an installation from a repository the commit is noted, and not the address, which may contain a secret.
# shellcheck shell=bash
# Writes what is installed where this starts into the launch's folder $1, if there is no list yet: that of the first of
# the Pythons $3… in the PATH $2.
note_packages() (
  cd -- "$1" || exit 0
  [ ! -e packages.txt ] || exit 0
  path=$2
  shift 2
  timeout -k 5 30 "$(PATH=${path:-$PATH} type -P "$@" | head -n 1)" -c '
import json, os, pathlib, sys
from importlib import metadata
found = set()
for package in metadata.distributions():
    commit = json.loads(package.read_text("direct_url.json") or "{}").get("vcs_info", {}).get("commit_id", "")
    found.add("%s==%s%s" % (package.metadata["Name"], package.version, commit and "  # " + commit))
print("python==%s" % sys.version.split()[0], *sorted(found), sep="\n")
for file in sorted(pathlib.Path(os.environ.get("CONDA_PREFIX", "/-"), "conda-meta").glob("*.json")):
    print("conda " + file.stem)
' | head -c 262144 > "packages.txt.$$"
  if [ -s "packages.txt.$$" ]; then mv -- "packages.txt.$$" packages.txt; else rm -f -- "packages.txt.$$"; fi
) < /dev/null > /dev/null 2>&1
