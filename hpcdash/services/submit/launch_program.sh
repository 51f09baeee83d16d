# Root's program for launches of other accounts; `root` is their folder. It calls `weak_spot` and `unstaged_file`.
# shellcheck shell=sh
# `hpcdash sudoers --program` printed it. It belongs to root, and nobody else may write to it.
#
#   hpcdash-launch make LAUNCH                      make a folder of mode 0700, and print its path
#   hpcdash-launch write LAUNCH FILE [SHA256]       write stdin to a file; one that begins with #! is executable
#   hpcdash-launch read LAUNCH FILE [FIRST COUNT]   print a file; or DEVICE:INODE SIZE MODIFIED FIRST, then COUNT bytes
#                                                   from the offset FIRST on (`end`: the last ones)
#   hpcdash-launch remove LAUNCH [SHA256 [staged]]  remove a folder: with SHA256 only if its SHA256SUMS has that digest,
#                                                   with `staged` only if nothing but logs was added to it
#
# Status: 0 done, 1 refused or failed, 2 wrong arguments, 3 not there, 4 more than was staged, 5 not what was staged.
# LAUNCH and FILE are names of letters, digits and ._@+- alone, never paths. The folder is one that others may write to:
# whatever is there already may be theirs.

set -fu
PATH=/usr/bin:/bin
LC_ALL=C
export PATH LC_ALL
unset IFS CDPATH
umask 077

fail() {
  printf 'hpcdash-launch: %s\n' "$1" >&2
  exit "${2:-1}"
}

plain() {
  case $1 in
    '' | .* | -* | *[!A-Za-z0-9._@+-]*)
      fail 'a name may contain only letters, digits and ._@+-, and cannot start with . or -' 2
      ;;
  esac
  [ "${#1}" -le 200 ] || fail 'a name has at most 200 letters' 2
}

number() {
  case $1 in
    0 | [1-9]*) ;;
    *) fail 'FIRST and COUNT are whole numbers' 2 ;;
  esac
  case $1 in *[!0-9]*) fail 'FIRST and COUNT are whole numbers' 2 ;; esac
  [ "${#1}" -le 15 ] || fail 'FIRST and COUNT are at most 15 digits' 2
}

# Into the launch, where it is a folder of this account's own: nobody else can put another in its place, as the root is
# sticky.
enter() {
  [ -e "./$launch" ] || [ -L "./$launch" ] || fail "no launch $launch" 3
  { [ ! -L "./$launch" ] && [ -d "./$launch" ]; } || fail "$launch is not a launch: not a folder" 5
  { cd -P -- "./$launch" 2>/dev/null && [ "$(pwd -P)" = "$root/$launch" ]; } || fail "$launch cannot be entered" 5
  found=$(stat -c '%u %a' .) || fail "cannot inspect $launch" 5
  [ "${found% *}" = "$user" ] || fail "$launch belongs to another account" 5
  mode=0${found#* }
  [ $((mode & 022)) -eq 0 ] || fail "others may write to $launch" 5
}

# A file of the launch's that is no link, or with `new` none at all.
regular() {
  if [ -L "./$file" ] || { [ -e "./$file" ] && [ ! -f "./$file" ]; }; then fail "$file is not a regular file" 5; fi
  [ -e "./$file" ] || [ "${1-}" = new ] || fail "no file $file" 3
}

usage() {
  what='make LAUNCH | write LAUNCH FILE [SHA256] | read LAUNCH FILE [FIRST COUNT] | remove LAUNCH [SHA256 [staged]]'
  fail "usage: $what" 2
}

case ${1-}:$# in
  make:2 | write:[34] | read:[35] | remove:[234]) ;;
  *) usage ;;
esac
verb=$1 launch=$2 file=${3-}
plain "$launch"
case $verb in write | read) plain "$file" ;; esac

user=$(id -u) || fail 'cannot determine the current user'
least=1000
if [ -r /etc/login.defs ]; then
  while read -r key value _; do
    case $key:$value in UID_MIN:*[!0-9]* | UID_MIN:) ;; UID_MIN:*) least=$value ;; esac
  done </etc/login.defs
fi
{ [ "$user" -ge "$least" ] && [ "$user" -ne 0 ]; } || \
  fail "uid $user is a system account, below UID_MIN ($least) of /etc/login.defs: launches are not allowed"

why=$(weak_spot "$root" root sticky)
[ -z "$why" ] || fail "$why"
{ cd -P -- "$root" 2>/dev/null && [ "$(pwd -P)" = "$root" ]; } || fail "$root cannot be entered"

case $verb in
  make)
    mkdir -m 700 -- "./$launch" || exit 1
    enter
    printf '%s\n' "$root/$launch"
    ;;

  write)
    enter
    regular new
    # No FILE begins with a dot.
    new=./.$file.$$
    rm -f -- "$new"
    set -C
    if cat >"$new"; then
      [ -z "${4-}" ] || [ "$(sha256sum <"$new")" = "$4  -" ] || { rm -f -- "$new"; fail "$file arrived incomplete"; }
      case $(head -c 2 <"$new" | tr -d '\000') in '#!') chmod 700 "$new" ;; esac
      mv -f -- "$new" "./$file" && exit 0
    fi
    rm -f -- "$new"
    fail "$file cannot be written"
    ;;

  read)
    enter
    regular
    if [ $# -eq 3 ]; then exec cat -- "./$file"; fi
    first=$4 count=$5
    [ "$first" = end ] || number "$first"
    number "$count"
    exec 3<"./$file" || exit 1
    # What is looked at is what is read, whatever is renamed meanwhile.
    found=$(stat -L -c '%d:%i %s %Y' /proc/self/fd/3) || exit 1
    if [ "$first" = end ]; then
      size=${found#* }
      first=$((${size% *} - count))
      [ "$first" -ge 0 ] || first=0
    fi
    printf '%s %s\n' "$found" "$first"
    [ "$count" -eq 0 ] || tail -c "+$((first + 1))" <&3 | head -c "$count"
    ;;

  remove)
    (enter) || exit
    # An empty one was never filled.
    rmdir -- "./$launch" 2>/dev/null && exit 0
    if [ "$file" ]; then
      sums=$({ cd -P -- "./$launch" && sha256sum <SHA256SUMS; } 2>/dev/null)
      [ "$sums" = "$file  -" ] || fail "the contents of $launch differ from the staged files" 5
    fi
    case ${4-} in
      '') ;;
      staged)
        more=$(cd -P -- "./$launch" && unstaged_file)
        [ -z "$more" ] || fail "unstaged content:  $more" 4
        ;;
      *) usage ;;
    esac
    rm -rf -- "./$launch"
    ;;
esac
