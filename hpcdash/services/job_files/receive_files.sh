# $1 token, $2 folder, $3 `force` to replace files, then for each file: its name below the folder, the name of its part, the
# offset and the length of its bytes on stdin, and the SHA-256 of the whole file if these are its last. Prints for each
# `TOKEN RESULT`: part, whole, exists, way (a link or a file is in the way), full, short, damaged.
# A part is in a folder that only this account can write to until it is whole. It calls `enter` and `enter_own`.
# shellcheck shell=sh
LC_ALL=C; export LC_ALL
token=$1 root=$2 force=$3 parts=.hpcdash-parts-$(id -u); shift 3
receive() (
  result=way
  trap 'printf "%s %s\n" "$token" "$result"' EXIT
  # Whatever happens, the next file begins after this one's bytes.
  skip() { result=$1; head -c "$length" >/dev/null; exit 1; }
  rest=$1 part=$2 offset=$3 length=$4 sum=$5 here=$root
  cd -P -- "$root" || skip way
  while case $rest in */*) ;; *) false ;; esac; do
    name=${rest%%/*} rest=${rest#*/}
    mkdir -- "./$name" 2>/dev/null
    enter "$here" "$name" || skip way
    here=$here/$name
  done
  name=$parts
  enter_own "$name" || { [ -e "$here/$name" ] && skip way; skip full; }
  [ "$offset" -gt 0 ] || : 2>/dev/null >"./$part" || skip full
  [ "$(stat -c %s "./$part")" = "$offset" ] || skip short
  if ! head -c "$length" 2>/dev/null >>"./$part"; then
    rm -f -- "./$part"
    cd .. && rmdir -- "./$name" 2>/dev/null
    cat >/dev/null
    result=full; exit 1
  fi
  [ "$(stat -c %s "./$part")" = "$((offset + length))" ] || { result=short; exit 1; }
  [ "$sum" ] || { result=part; exit; }
  if [ "$(sha256sum <"./$part")" != "$sum  -" ]; then
    rm -f -- "./$part"
    result=damaged; exit 1
  fi
  is_at "$here/$name" || { result=way; exit 1; }
  if [ "$force" ]; then
    if mv -fT -- "./$part" "../$rest" 2>/dev/null; then result=whole; else result=exists; fi
  elif ln -T -- "./$part" "../$rest" 2>/dev/null; then
    result=whole
  elif [ -e "../$rest" ] || [ -h "../$rest" ]; then
    result=exists
  else
    # A file system without hard links.
    mv -nT -- "./$part" "../$rest" 2>/dev/null
    if [ -e "./$part" ]; then result=exists; else result=whole; fi
  fi
  rm -f -- "./$part"
  cd .. && rmdir -- "./$name" 2>/dev/null
)
while [ $# -gt 4 ]; do
  receive "$1" "$2" "$3" "$4" "$5"
  shift 5
done
exit 0
