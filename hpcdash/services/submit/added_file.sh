# added_file: prints a file that a job made or changed in its launch's folder; .unpacked is as old as the files of a
# request there. It calls `unstaged_file`.
# shellcheck shell=sh
added_file() {
  if ! test -f ./.unpacked; then
    unstaged_file
    return
  fi
  found=$(find ./code ! -type d ! -path '*/__pycache__/*' -cnewer ./.unpacked | head -n 1)
  if test -n "$found"; then
    printf '%s\n' "$found"
  else
    unstaged_file ./.unpacked './packages.txt*' './code/*' ./code.tar.gz
  fi
}
