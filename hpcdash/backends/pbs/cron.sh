# shellcheck shell=sh

waiting() { qselect -u "$(id -un)" -N "$name" -s HQW; }
submit_again() { qsub -a "$(date -d "+$every seconds" +%Y%m%d%H%M.%S)" "$self"; }
hand_in() { qsub "$1"; }
elder() {
  for other in $(qselect -u "$(id -un)" -N "$name" -s R); do
    [ "${other%%.*}" -lt "${PBS_JOBID%%.*}" ] && return 0
  done
  return 1
}
