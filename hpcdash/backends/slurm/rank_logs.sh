# Signals reach every process of the step; tee must outlive them. `log` is a path without its ending.
# shellcheck shell=bash
copies=()
trap '' HUP INT QUIT TERM USR1 USR2 CONT
if (umask 077 && : >> "$log.out" && : >> "$log.err" && type -P tee > /dev/null); then
  exec > >(exec tee -a -- "$log.out")
  copies+=("$!")
  exec 2> >(exec tee -a -- "$log.err" >&2)
  copies+=("$!")
else
  echo "hpcdash: rank $SLURM_PROCID has no separate log: cannot write $log.out" >&2
fi
trap - HUP INT QUIT TERM USR1 USR2 CONT
