# $1 token, $2 seconds between two looks, $3 how many looks. All of a look is one frame.
# Processes are asked once whose they are: their start tells a number that is used again. In `eval`
# stand numbers alone.
# shellcheck shell=sh

nl='
'
put() { content=$content$1$nl; }
of_groups() {
  [ -n "$HPCDASH_JOB_CGROUP" ] || return 0
  while IFS= read -r line; do
    case $line in */"$HPCDASH_JOB_CGROUP" | */"$HPCDASH_JOB_CGROUP"/*) ;; *) continue ;; esac
    path=${line#*:}
    controllers=${path%%:*}
    path=${path#*:}
    path=${path%%/"$HPCDASH_JOB_CGROUP"*}/$HPCDASH_JOB_CGROUP
    case ,$controllers, in
      ,,) unified=/sys/fs/cgroup$path ;;
      *,memory,*) memory_group=/sys/fs/cgroup/memory$path ;;
      *,cpuacct,*) cpu_group=/sys/fs/cgroup/cpuacct$path ;;
    esac
  done < "/proc/$1/cgroup"
}
value_in() {
  while read -r name value; do
    if [ "$name" = "$2" ]; then echo "$value"; break; fi
  done < "$1"
}
look() {
  content=
  read -r up _ < /proc/uptime
  put "up $up"
  put "cpus $(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)"
  put "ticks $ticks"
  put "page $page"
  for of in /proc/[0-9]*; do
    pid=${of#/proc/}
    [ -O "$of" ] || continue
    IFS= read -r line < "$of/stat" || continue
    set -f
    # shellcheck disable=SC2086
    set -- ${line##*) }
    set +f
    start=${20}
    eval "known=\$known_$pid"
    case $known in
      "$start "*) ;;
      *)
        known="$start "
        if of_job "$pid"; then
          [ -n "$leader" ] || { leader=$pid; of_groups "$pid"; }
          rank=$(rank_of "$pid")
          known="$start job ${rank:--} $(tr '\0\n' '  ' < "$of/cmdline" | cut -c 1-160)"
        fi
        eval "known_$pid=\$known"
        ;;
    esac
    case $known in "$start job "*) put "process $pid ${12} ${13} ${22} ${known#"$start job "}" ;; esac
  done
  if [ -r "$unified/memory.current" ]; then
    read -r used < "$unified/memory.current"
    read -r limit < "$unified/memory.max"
    put "memory $used ${limit:--} $(value_in "$unified/memory.stat" inactive_file)"
    put "cpu_usec $(value_in "$unified/cpu.stat" usage_usec)"
  elif [ -r "$memory_group/memory.usage_in_bytes" ]; then
    read -r used < "$memory_group/memory.usage_in_bytes"
    read -r limit < "$memory_group/memory.limit_in_bytes"
    put "memory $used ${limit:--} $(value_in "$memory_group/memory.stat" total_inactive_file)"
  fi
  if [ -r "$cpu_group/cpuacct.usage" ]; then
    read -r used < "$cpu_group/cpuacct.usage"
    put "cpu_nsec $used"
  fi
  # A step within the job's allocation has its GPUs; elsewhere the job's own processes know them.
  if [ -z "$visible" ] && [ -n "$leader" ]; then
    visible=$(variable "$leader" CUDA_VISIBLE_DEVICES)
    [ -n "$visible" ] || visible=$(variable "$leader" ROCR_VISIBLE_DEVICES)
  fi
  put "visible ${visible%%"$nl"*}"
  if command -v nvidia-smi >/dev/null; then
    put "nvidia$nl$(timeout -k 1 8 nvidia-smi --format=csv,noheader,nounits \
      --query-gpu=index,uuid,utilization.gpu,memory.used,memory.total,power.draw,name)"
  elif command -v rocm-smi >/dev/null; then
    put "rocm$nl$(timeout -k 1 8 rocm-smi --showuse --showmeminfo vram --showpower --csv)"
  fi
}
ticks=$(getconf CLK_TCK) page=$(getconf PAGESIZE)
leader='' unified='' memory_group='' cpu_group='' visible=${CUDA_VISIBLE_DEVICES:-$ROCR_VISIBLE_DEVICES}
count=0 pause=2
while [ "$count" -lt "$most" ]; do
  [ "$count" -eq 0 ] || sleep "$pause"
  count=$((count + 1))
  [ "$count" -lt 2 ] || pause=$every
  look
  printf '%s' "$content" | framed -
  frame - "=0" || break
done
kill -KILL "$watcher"
