# $1 root, $2 launch, $3 digest, $4 size, $5 first byte that comes on stdin, '' where none does; $6 'copied' where each
# node unpacks it. What is unpacked was whole. It calls `partial_archive`.
# shellcheck shell=sh disable=SC2012,SC3067
umask 077
fail() { status=$1; shift; printf '%s\n' "$*" >&2; exit "$status"; }
# $1 the status, $2 what did not fit.
no_room() {
  df -Pk . | sed -n '2s/.* \([0-9][0-9]*\)  *[0-9]*% */\1 KiB are free in /p' >&2
  rm -rf -- "$2"
  exit "$1"
}
count() {
  every=3
  while sleep $every >/dev/null 2>&1; do
    echo "arrived $(wc -c < "$own")" >&2
    test $every -gt 14 || every=$((every + 1))
  done
}
root=$(cd -P -- "$1" && pwd -P) || exit 17
name=$2 sum=$3 size=$4 first=$5 copied=${6-} cache=$root/.code-$(id -u)
mkdir -m 700 -- "$cache" 2>/dev/null
cd -P -- "$cache" || exit 17
test "$(pwd -P)" = "$cache" && test -O . || fail 18 "$cache is not owned by this account"
chmod 700 . || exit 18
whole=./$sum.tar.gz
if test ! -f "$whole"; then
  test -n "$first" || fail 21 'the cached files are gone: submit again to send them'
  own=./$sum.$(uname -n).$$.part
  if test "$first" != 0; then
    partial_archive "$sum"
    test -n "$part" && mv -- "$part" "$own" && test "$(wc -c < "$own")" -eq "$first" ||
      fail 21 'the partial upload is gone: submit again'
  fi
  count &
  counting=$!
  cat >> "$own"
  status=$?
  kill $counting
  test $status = 0 || no_room 20 "$own"
  have=$(($(wc -c < "$own")))
  test "$have" -ge "$size" || fail 22 "$have of $size bytes of the files arrived: submit again to send the rest"
  test "$(sha256sum < "$own")" = "$sum  -" || {
    rm -f -- "$own"
    fail 23 'the files arrived damaged: submit again'
  }
  mv -- "$own" "$whole" || exit 20
elif test -n "$first"; then
  cat > /dev/null
fi
test "$(sha256sum < "$whole")" = "$sum  -" || {
  rm -f -- "$whole"
  fail 23 'the cached files are damaged: submit again to send them'
}
# Of what was not used for an hour the newest four stay, for thirty days.
touch -- "$whole"
ls -t ./*.tar.gz | sed 1,4d | while read -r old; do find "$old" -mmin +60 -exec rm -f -- '{}' ';'; done
find . -type f '(' -name '*.tar.gz' -o -name '*.part' ')' -mtime +30 -exec rm -f -- '{}' ';'
cd -P -- "$root/$name" && test "$(pwd -P)" = "$root/$name" && test -O . || exit 24
if test -n "$copied"; then
  ln -- "$cache/$sum.tar.gz" ./code.tar.gz 2>/dev/null || cp -- "$cache/$sum.tar.gz" ./code.tar.gz ||
    no_room 24 ./code.tar.gz
  touch ./.unpacked
  exit
fi
mkdir -m 700 ./code || exit 24
tar -xzomf "$cache/$sum.tar.gz" && touch ./.unpacked || no_room 24 ./code
