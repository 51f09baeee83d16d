# $1 root, $2 name, $3 digest of the sums, $4 'staged' to leave it where it holds more than that and logs. Removes the
# folder that holds what was staged, and nothing a link leads to. It calls `added_file`.
# shellcheck shell=sh disable=SC3067
cd -P -- "$1" && test -e "./$2" || exit 3
test ! -L "./$2" && test -O "./$2" && test "$(sha256sum < "./$2/SHA256SUMS")" = "$3  -" || exit 5
test -z "$4" || {
  more=$(cd -P -- "./$2" && added_file)
  test -z "$more" || { printf 'unstaged content:  %s\n' "$more" >&2; exit 4; }
}
rm -rf -- "./$2"
