# Which processes are the job's, for scripts that look at them. A step sets HPCDASH_JOB_CGROUP to
# the name of the job's cgroup ('' for none), and HPCDASH_JOB_PATTERNS to regular expressions, a
# line each, all of which match variables of the job's processes; HPCDASH_NODE_VARIABLE names the
# variable that tells nodes apart which are one machine. HPCDASH_RANK_VARIABLE names the one that a
# task's number is in. HPCDASH_JOB_VARIABLES name those with a job's number, the first of which
# every process of a job has, with HPCDASH_JOB_SUFFIX at its end; those that HPCDASH_JOB_SAME names
# are alike in all jobs of one scheduler, and in a step.
# HPCDASH_INSIDE marks what hpcdash itself runs in a job. `test -O` is dash's and bash's.
# shellcheck shell=sh

variable() {
  tr '\0' '\n' < "/proc/$1/environ" 2>/dev/null | while IFS= read -r assignment; do
    case $assignment in "$2="*) printf '%s\n' "${assignment#*=}"; break ;; esac
  done
}
rank_of() {
  for name in RANK "$HPCDASH_RANK_VARIABLE" OMPI_COMM_WORLD_RANK PMI_RANK; do
    [ -n "$name" ] || continue
    value=$(variable "$1" "$name")
    case $value in '' | *[!0-9]*) ;; *) echo "$value"; return ;; esac
  done
}
job_cgroup() {
  [ -n "$HPCDASH_JOB_CGROUP" ] || return 1
  while IFS= read -r line; do
    case $line in */"$HPCDASH_JOB_CGROUP" | */"$HPCDASH_JOB_CGROUP"/*)
      printf '%s\n' "${line%%/"$HPCDASH_JOB_CGROUP"*}/$HPCDASH_JOB_CGROUP" ;;
    esac
  done 2>/dev/null < "/proc/$1/cgroup"
}
of_job() {
  [ -O "/proc/$1" ] || return 1
  grep -qz '^HPCDASH_INSIDE=' "/proc/$1/environ" 2>/dev/null && return 1
  if [ -n "$HPCDASH_NODE_VARIABLE" ]; then
    its=$(variable "$1" "$HPCDASH_NODE_VARIABLE")
    [ "${its:-$HPCDASH_NODE}" = "$HPCDASH_NODE" ] || return 1
  fi
  [ -n "$(job_cgroup "$1")" ] && return 0
  [ -n "$HPCDASH_JOB_PATTERNS" ] || return 1
  while IFS= read -r pattern; do
    grep -qzE -e "$pattern" "/proc/$1/environ" 2>/dev/null || return 1
  done <<patterns
$HPCDASH_JOB_PATTERNS
patterns
}
