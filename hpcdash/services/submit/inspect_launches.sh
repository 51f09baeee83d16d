# Of each launch its folder and the digest of its sums; prints for each whether the folder is ours to remove, its KiB and
# files, and why not. It calls `added_file`.
# shellcheck shell=sh disable=SC3067
LC_ALL=C; export LC_ALL
look() {
  name=${1##*/}
  cd -P -- "${1%/*}" && { test -e "./$name" || test -L "./$name"; } || { echo 'gone 0 0'; return; }
  here=$(pwd -P)
  test ! -L "./$name" && test -d "./$name" && test -O "./$name" && cd -P -- "./$name" &&
    test "$(pwd -P)" = "${here%/}/$name" || { echo 'kept 0 0 a link, or not a folder of yours'; return; }
  size=$(du -sk . | cut -f 1) count=$(find . | wc -l)
  test "$(sha256sum < SHA256SUMS)" = "$2  -" || { echo "kept $size $count the contents differ from the staged files"; return; }
  more=$(added_file)
  test -z "$more" || { printf 'kept %s %s unstaged content:  %s\n' "$size" "$count" "$more"; return; }
  echo "ours $size $count"
}
while test $# -gt 0; do
  (look "$1" "$2" 2>/dev/null)
  shift 2
done
