# A process of the job with another root folder is in its container; what starts containers may have
# other mounts than the node, but not another root. The oldest has the container's variables. What
# is in a user namespace of the person's own can be entered by them, that of a setuid program
# cannot. A container may not pass all variables of a job on. `sh` is in each image that a launch
# runs in, `true` need not be. $1 is what starts in the container, and $2 outside of it; $3 is the
# folder, then come the words of a command.
# shellcheck shell=sh disable=SC2086

inside=$1 outside=$2 folder=$3 every='[A-Za-z_][A-Za-z0-9_]*'
shift 3
root=$(stat -L -c %d:%i /)
found='' oldest=''
for of in /proc/[0-9]*; do
  [ -O "$of" ] || continue
  [ "$(readlink "$of/ns/mnt")" != "$(readlink /proc/self/ns/mnt)" ] || continue
  [ "$(stat -L -c %d:%i "$of/root/")" != "$root" ] || continue
  for name in HPCDASH_ATTEMPT SLURM_JOB_ID PBS_JOBID; do
    eval "value=\${$name-}"
    [ -n "$value" ] || continue
    if tr '\n\0' '\001\n' < "$of/environ" | grep -Fxq -e "$name=$value"; then
      began=$(sed 's/.*) //' "$of/stat" | cut -d ' ' -f 20)
      [ -n "$oldest" ] && [ "${began:-0}" -ge "$oldest" ] || { found=$of oldest=$began; }
    fi
    break
  done
done 2>/dev/null
why="no process in it is visible on this node"
nsenter=$(command -v nsenter) || why="nsenter is not on this node" found=
if [ -n "$found" ]; then
  how="--mount --root --wd"
  for kind in pid ipc uts net; do
    [ "$(readlink "$found/ns/$kind")" = "$(readlink "/proc/self/ns/$kind")" ] || how="$how --$kind"
  done
  [ "$(readlink "$found/ns/user")" = "$(readlink /proc/self/ns/user)" ] || how="--user --preserve-credentials $how"
  if why=$(adopt "$found" "$every"; "$nsenter" --target "${found#/proc/}" $how -- sh -c : 2>&1); then
    adopt "$found" "$every"
    exec "$nsenter" --target "${found#/proc/}" $how -- sh -c "$inside" sh "$folder" "$@"
  fi
fi
echo "hpcdash: cannot enter the job's container: $why" >&2
if [ $# -gt 0 ] || ! [ -t 0 ]; then
  echo "hpcdash: nothing was run; --outside runs the command on the node, outside the container" >&2
  exit 126
fi
printf 'hpcdash: open a shell on the node, outside the container? [y/N] ' >&2
read -r answer
case $answer in [yY]*) exec sh -c "$outside" sh "$folder" ;; esac
exit 126
