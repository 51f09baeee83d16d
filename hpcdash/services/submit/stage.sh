# $1 root, $2 name, $3 'own' where the root has to be this account's, $4 'copied' where jobs run checked copies of what is
# staged: nothing else is staged where others may put another folder in the place of ours. A tar comes on stdin. What is
# there, a link too, is not entered: mkdir makes it or fails. Once entered, it has to be ours and where it was made.
# shellcheck shell=sh disable=SC3067
test -n "$4" || refuse_replaceable "$1"
mkdir -p -- "$1" && cd -P -- "$1" && here=$(pwd -P) || exit 17
test -z "$3" || test -O . || { echo "$1 belongs to another user" >&2; exit 18; }
test -n "$4" || refuse_replaceable "$1"
mkdir -m 700 -- "./$2" || exit 17
cd -P -- "./$2" && test "$(pwd -P)" = "${here%/}/$2" && test -O . || { echo "the folder was replaced" >&2; exit 18; }
if tar -xof - && sha256sum -c SHA256SUMS; then
  test -n "$4" || share_library "$here" "$3"
  exit 0
fi
cd -- "$here" && rm -rf -- "./$2"
exit 19
