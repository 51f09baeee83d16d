# $1 token, $2 whose quota, '' for one's own, then words: `file KEY PATH`, `newest KEY PATTERN`,
# `whole KEY FOLDER` (of checkpoints, by what is written last into each, as launches look for them),
# `disk PATH TOOL KIND OWNER DU INODES`. Prints `TOKEN KIND KEY\n` and what a program printed, first
# of all the clock there. stat opens nothing: a FIFO would wait for its writer. IFS is empty so that
# a pattern is filled in by its files and not parted at blanks. A name's line break is escaped: it
# begins no line of its own. Whatever touches a path is bounded, the shell's own patterns too: on a
# dead mount it would wait for ever. Below the first folder on the way that does not answer nothing
# more is asked.
# shellcheck shell=sh disable=SC2016,SC2153

LC_ALL=C QUOTING_STYLE=escape; export LC_ALL QUOTING_STYLE; IFS=
token=$1 user=${2:-$(id -un)}; shift 2
silent=
part() { printf '%s%s\n' "$token" "$1"; }
bounded() { seconds=$1; shift; timeout -k 2 "$seconds" "$@" </dev/null 2>/dev/null; }
answers() {
  left=$silent
  while [ "$left" ]; do
    case $1/ in "${left%%"$token"*}"/*) return 1 ;; esac
    left=${left#*"$token"}
  done
}
is_over() { case $1 in 124 | 137 | 143) ;; *) return 1 ;; esac; }
note_silent() {
  left=${1#/} at=
  while [ "$left" ]; do
    at=$at/${left%%/*}
    case $left in */*) left=${left#*/} ;; *) left= ;; esac
    bounded 1 stat -L -c %F -- "$at" >/dev/null
    is_over $? && break
  done
  silent=$silent$at$token SILENT=$((SILENT - 1))
  [ "$SILENT" -gt 0 ] || FILE=1
  part silent; printf '%s\n' "$at"
}
look() {
  path=$1; shift
  answers "$path" || return 9
  found=$(bounded "$FILE" "$@")
  status=$?
  is_over "$status" || return "$status"
  note_silent "$path"; return 9
}
newest() {
  key=$1; shift
  look "$@"
  [ $? -eq 9 ] || { part "newest $key"; printf '%s\n' "$found" | sort -n | tail -n 1; }
}
ask() { part "$1"; shift; bounded "$@"; }
part clock; date +%s
while [ $# -gt 0 ]; do
  case $1 in
  file)
    look "$3" stat -L -c '%d:%i %s %Y' -- "$3"
    [ $? -eq 9 ] || { part "file $2"; printf '%s\n' "$found"; }
    shift 3
    ;;
  tail)
    key=$2 path=$3 identity=$4 read_to=$5 begin=$6 is_done=$7; shift 7
    look "$path" stat -L -c '%d:%i %s %Y %F' -- "$path" || continue
    case $found in *' regular '*) found=${found%% regular *} ;; *) continue ;; esac
    size=${found#* }; size=${size%% *}
    if [ "${found%% *}" != "$identity" ] || [ "$size" -lt "$read_to" ]; then begin=0 identity=; fi
    [ "$size" -eq "$read_to" ] && [ "$is_done" = 1 ] && begin=$size
    [ $((size - begin)) -gt "$MOST" ] && begin=$((size - MOST))
    part "tail $key"; printf '%s %s\n' "$found" "$begin"
    if [ "$begin" -gt 0 ] && [ ! "$identity" ]; then
      part "head $key"; bounded "$FILE" head -c "$HEAD" -- "$path"
    fi
    part "bytes $key"
    [ "$size" -gt "$begin" ] && bounded "$FILE" tail -c +$((begin + 1)) -- "$path" | head -c $((size - begin))
    ;;
  newest) newest "$2" "$3" sh -c 'IFS=; stat -L -c "%Y %N" -- $1' sh "$3"; shift 3 ;;
  whole)
    newest "$2" "$3" sh -c 'stat -L -c "%Y %N" -- "$1"/*/WHOLE.json "$1"/checkpoint-*/trainer_state.json \
      "$1"/*/.metadata "$1"/guard.ckpt' sh "$3"
    shift 3
    ;;
  disk)
    path=$2 tool=$3 kind=$4 owner=$5 du=$6 inodes=$7; shift 7
    part disk
    look "$path" stat -f -c %T -- "$path"
    [ $? -eq 9 ] && continue
    if [ "$tool" = auto ]; then
      case $found in
        lustre) tool=lfs ;;
        gpfs) tool=mmlsquota ;;
        fhgfs | beegfs) tool=beegfs-ctl ;;
        nfs* | xfs | ext*) tool=quota ;;
      esac
    fi
    [ "$owner" ] || owner=$user
    case $tool-$kind in
      lfs-user) ask lfs "$TOOL" lfs quota -u "$owner" "$path" ;;
      lfs-group) ask lfs "$TOOL" lfs quota -g "$owner" "$path" ;;
      lfs-project) ask lfs "$TOOL" lfs quota -p "$owner" "$path" ;;
      beegfs-ctl-user) ask beegfs-ctl "$TOOL" beegfs-ctl --getquota --csv --uid "$owner" ;;
      beegfs-ctl-group) ask beegfs-ctl "$TOOL" beegfs-ctl --getquota --csv --gid "$owner" ;;
      mmlsquota-user) ask mmlsquota "$TOOL" mmlsquota -Y -u "$owner" ;;
      mmlsquota-group) ask mmlsquota "$TOOL" mmlsquota -Y -g "$owner" ;;
      mmlsquota-project) ask mmlsquota "$TOOL" mmlsquota -Y -j "$owner" ;;
      quota-user) ask quota "$TOOL" quota -w -u "$owner" ;;
      quota-group) ask quota "$TOOL" quota -w -g "$owner" ;;
    esac
    ask df "$TOOL" df -P -k -- "$path"
    ask df-i "$TOOL" df -P -i -- "$path"
    [ "$du" = 1 ] && ask du "$DU" du -s -k -- "$path"
    [ "$inodes" = 1 ] && ask du-i "$DU" du -s --inodes -- "$path"
    ;;
  *) exit 64 ;;
  esac
done
part end
