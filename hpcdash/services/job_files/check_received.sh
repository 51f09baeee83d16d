# $1 token, $2 folder, then for each file: its name below the folder, the name of its part, and its size. Prints for each
# `TOKEN THERE TARGET_SHA256 PART_SIZE PART_SHA256`, where THERE is new, same (a file of that size, with its sum) or exists.
# It calls `enter` and `enter_own`.
# shellcheck shell=sh
LC_ALL=C; export LC_ALL
token=$1 root=$2; shift 2
sum() { sha256sum <"$1" | cut -c -64; }
check() (
  cd -P -- "$root" || exit 1
  here=$root rest=$1 there=new target=- size=0 part=-
  while case $rest in */*) ;; *) false ;; esac; do
    name=${rest%%/*} rest=${rest#*/}
    [ -e "./$name" ] || [ -h "./$name" ] || { printf '%s new - 0 -\n' "$token"; exit; }
    enter "$here" "$name" || { printf '%s exists - 0 -\n' "$token"; exit; }
    here=$here/$name
  done
  if [ -e "./$rest" ] || [ -h "./$rest" ]; then
    there=exists
    if [ ! -h "./$rest" ] && [ -f "./$rest" ] && [ "$(stat -c %s "./$rest")" = "$3" ]; then
      there=same target=$(sum "./$rest")
    fi
  fi
  name=.hpcdash-parts-$(id -u)
  if [ -d "./$name" ] && enter_own "$name" && [ -f "./$2" ]; then
    size=$(stat -c %s "./$2") part=$(sum "./$2")
  fi
  printf '%s %s %s %s %s\n' "$token" "$there" "${target:--}" "$size" "${part:--}"
)
while [ $# -gt 2 ]; do
  check "$1" "$2" "$3"
  shift 3
done
