# The same rule in POSIX sh, for the machines of a cluster.
# shellcheck shell=sh
# weak_spot PATH [root [sticky]]: prints who else could put something else at PATH, or at what leads
# there; nothing where nobody could. Each part is this account's or root's, and others may write to it only where it is
# a sticky folder. With `root` each is root's, is there and is no link, and of sticky folders the same goes with
# `sticky` alone.
weak_spot() (
  LC_ALL=C
  export LC_ALL
  unset IFS
  set -f
  left=$1 roots=${2-} sticky=${3-} at='' hops=0 me=$(id -u)
  home=$(cd -P -- "${HOME:-/}" 2>/dev/null && pwd -P)
  while :; do
    here=${at:-/}
    # shellcheck disable=SC2012,SC2046 # both coreutils and busybox have these columns, and `+` for an access list
    set -- $(ls -ldn -- "$here" 2>/dev/null)
    if [ $# -lt 4 ]; then [ -z "$roots" ] || echo "$here does not exist"; exit 0; fi
    mode=$1 owner=$3 group=$4
    if [ "$roots" ]; then
      case $mode in l*) echo "$here is a link"; exit 0 ;; esac
      if [ "$owner" != 0 ]; then echo "$here is not owned by root"; exit 0; fi
    fi
    above=
    # Folders above the home may be anybody's: whoever owns them has the home.
    case $home in "$at"/?*) above=1 ;; esac
    case $mode in l*) case ${HOME-}/ in "$at"/*) above=1 ;; esac ;; esac
    if [ "$owner" != 0 ] && [ "$owner" != "$me" ] && [ -z "$above" ]; then
      # shellcheck disable=SC2012
      name=$(ls -ld -- "$here" | { read -r _ _ name _; printf '%s' "$name"; })
      [ "$name" != "$owner" ] || name="uid $owner, an account that is not known here"
      echo "$here belongs to $name"
      exit 0
    fi
    case $mode in
      l*)
        target=$(readlink -- "$here")
        if [ -z "$target" ] || [ "$hops" -ge 40 ]; then echo "$here is a broken link"; exit 0; fi
        hops=$((hops + 1)) left=$target/$left at=${at%/*}
        case $target in /*) at='' ;; esac
        continue
        ;;
    esac
    case $sticky$roots$mode in
      d????????[tT]* | stickyrootd????????[tT]*) ;;
      *)
        case $mode in
          ????????w*) echo "others may write to $here"; exit 0 ;;
          ?????w*)
            if [ "$roots" ]; then echo "others may write to $here"; exit 0; fi
            # With a list of who may, the group's bits are the most that any of them may.
            case $mode in ??????????+*) false ;; *) private_group "$group" ;; esac || {
              name=$({ getent group "$group" || grep -e "^[^:]*:[^:]*:$group:" /etc/group; } 2>/dev/null | head -n 1)
              name=${name%%:*}
              echo "members of group ${name:-$group} may write to $here"
              exit 0
            }
            ;;
        esac
        ;;
    esac
    while :; do
      case $left in /*) left=${left#/} ;; ./*) left=${left#./} ;; *) break ;; esac
    done
    part=${left%%/*}
    case $left in */*) left=${left#*/} ;; *) left='' ;; esac
    case $part in '' | .) exit 0 ;; ..) at=${at%/*} ;; *) at=$at/$part ;; esac
  done
)
# private_group GID: whether the group is named as this account, and no other that can be listed is a member or has it
# as its own.
private_group() {
  login=$(id -un) gid=$1 uid=$(id -u)
  export login gid uid
  { getent group "$gid"; getent group || cat /etc/group; } 2>/dev/null | awk -F: '
    $3 == ENVIRON["gid"] {
      found = 1
      if ($1 != ENVIRON["login"]) others = 1
      count = split($4, members, ",")
      for (i = 1; i <= count; i++) if (members[i] != "" && members[i] != ENVIRON["login"]) others = 1
    }
    END { exit !found || others }' &&
    { getent passwd || cat /etc/passwd; } 2>/dev/null | awk -F: '
    $4 == ENVIRON["gid"] && $3 != ENVIRON["uid"] { others = 1 }
    END { exit others }'
}
