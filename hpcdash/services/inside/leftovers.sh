# $1 "list" or "end", $2 the numbers of the person's jobs that have not ended, then NODE and
# PID/START of what to end. A process is left behind where its variables name a job
# (HPCDASH_JOB_VARIABLES, of which the first must be there and end with HPCDASH_JOB_SUFFIX) and that
# has ended. What names no job is not ended, and neither is a job of another scheduler
# (HPCDASH_JOB_SAME), what leads here, what is in the cgroup of a job that runs, and an embedded
# queue that a job may have started.
# shellcheck shell=sh

mode=$1 running=$2
shift 2
leads_here=' ' pid=$$
while [ "${pid:-0}" -gt 1 ]; do
  leads_here="$leads_here$pid "
  pid=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status")
done
began() {
  IFS= read -r line < "/proc/$1/stat" || return 1
  set -f
  # shellcheck disable=SC2086
  set -- ${line##*) }
  set +f
  [ "$1" != Z ] && echo "${20}"
}
left_by() {
  [ -O "/proc/$1" ] || return 1
  case $leads_here in *" $1 "*) return 1 ;; esac
  ! grep -qz -e '^HPCDASH_INSIDE=' -e '^HPCDASH_SUPERVISOR=' "/proc/$1/environ" || return 1
  first=${HPCDASH_JOB_VARIABLES%% *}
  value=$(variable "$1" "$first")
  number=${value%%[!0-9]*}
  [ -n "$number" ] || return 1
  case $value in *"$HPCDASH_JOB_SUFFIX") ;; *) return 1 ;; esac
  [ "$first" = HPCDASH_ATTEMPT ] || ! grep -qz '^HPCDASH_ATTEMPT=' "/proc/$1/environ" || return 1
  for name in $HPCDASH_JOB_SAME; do
    [ "$(variable "$1" "$name")" = "$(printenv "$name")" ] || return 1
  done
  if [ -n "$HPCDASH_NODE_VARIABLE" ]; then
    its=$(variable "$1" "$HPCDASH_NODE_VARIABLE")
    [ "${its:-$HPCDASH_NODE}" = "$HPCDASH_NODE" ] || return 1
  fi
  ! of_job "$1" || return 1
  for name in $HPCDASH_JOB_VARIABLES; do
    value=$(variable "$1" "$name")
    case " $running " in *" ${value%%[!0-9]*} "*) return 1 ;; esac
  done
  for one in $running; do
    ! grep -qE "/${HPCDASH_JOB_CGROUP%%[0-9]*}$one([^0-9]|\$)" "/proc/$1/cgroup" || return 1
  done
  echo "$number"
}
count=0
if [ "$mode" = list ]; then
  others=0
  for of in /proc/[0-9]*; do
    pid=${of#/proc/}
    [ -O "$of" ] || continue
    words=$(tr '\0\n' '  ' < "$of/cmdline" | cut -c 1-200)
    [ -n "$words" ] || continue
    if number=$(left_by "$pid") && start=$(began "$pid"); then
      count=$((count + 1))
      echo "left by job $number, which has ended: $pid/$start: $words"
    elif ! grep -qz '^HPCDASH_INSIDE=' "$of/environ" && ! of_job "$pid"; then
      others=$((others + 1))
    fi
  done
  [ "$count" -gt 0 ] || echo "no visible processes left by your ended jobs"
  [ "$others" -eq 0 ] || echo "$others other processes of yours belong to another running job, or to none"
  exit 0
fi
ending=
while [ $# -ge 2 ]; do
  if [ "$1" = "$HPCDASH_NODE" ] && [ "$(began "${2%/*}")" = "${2#*/}" ] && left_by "${2%/*}" >/dev/null; then
    kill -TERM "${2%/*}" && ending="$ending $2"
  fi
  shift 2
done
still() {
  there=
  for one in $ending; do
    [ "$(began "${one%/*}")" != "${one#*/}" ] || there="$there $one"
  done
  [ -n "$there" ]
}
while [ "$count" -lt 25 ] && still; do
  sleep 0.2
  count=$((count + 1))
done
still && for one in $there; do kill -KILL "${one%/*}"; done
[ -z "$there" ] || sleep 0.5
still
for one in $ending; do
  case "$there " in *" $one "*) echo "still there: ${one%/*}" ;; *) echo "ended: ${one%/*}" ;; esac
done
[ -n "$ending" ] || echo "nothing to kill here: the processes are gone"
[ -z "$there" ]
