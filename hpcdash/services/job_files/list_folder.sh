# $1 token, $2 path, $3 `flat` for the entries of a folder, `deep` for everything below it, `self` for
# itself. Prints `TOKEN folder` and its real
# path, or `TOKEN file` and the real path of the folder it is in, then for each entry `TYPE IDENTITY SIZE MODIFIED OWNER`, its
# name and a link's target, each with a NUL after it; or `TOKEN PROBLEM`. No link below the path is followed.
# -printf is GNU find's: it looks at an entry by the descriptor of its folder, which nobody can replace meanwhile.
# shellcheck shell=sh
LC_ALL=C; export LC_ALL
token=$1 path=$2 depth=
[ "$3" = deep ] || depth='-maxdepth 1'
answer() { printf '%s %s\000' "$token" "$1"; }
enter() {
  cd -P -- "$1" 2>/dev/null || { answer closed; exit 0; }
  here=$(pwd -P && echo .)
  here=${here%??}
}
format='%y %D:%i %s %T@ %u\0%P\0%l\0'
if [ "$3" != self ] && [ -d "$path" ]; then
  enter "$path"
  [ -r . ] || { answer closed; exit 0; }
  answer folder; printf '%s\000' "$here"
  # shellcheck disable=SC2086
  exec find . -mindepth 1 $depth -printf "$format"
fi
if [ -e "$path" ] || [ -h "$path" ]; then
  case $path in
    */*) enter "${path%/*}/"; name=${path##*/} ;;
    *) enter .; name=$path ;;
  esac
  answer file; printf '%s\000' "$here"
  exec find "./$name" -maxdepth 0 -printf '%y %D:%i %s %T@ %u\0%f\0%l\0'
fi
answer missing
