# $1 token, $2 seconds, $3 "node" or "gpu", $4 folder, $5 "job" for the environment of the job's
# first process, $6 the bytes of output that are sent, then the command.
# shellcheck shell=sh

take_environment() {
  nl='
' mark=$(printf '\001')
  while IFS= read -r line; do
    name=${line%%=*}
    case $name in '' | "$line" | [0-9]* | *[!A-Za-z0-9_]*) continue ;; esac
    case $name in IFS | PPID | UID | EUID | GROUPS | PWD | OLDPWD | _ | SHELLOPTS | BASHOPTS | BASH_*) continue ;;
      HPCDASH_INSIDE | HPCDASH_NODE | HPCDASH_NODE_* | HPCDASH_JOB_* | HPCDASH_RANK_*) continue ;;
    esac
    while :; do
      case $line in *"$mark"*) line=${line%%"$mark"*}$nl${line#*"$mark"} ;; *) break ;; esac
    done
    export "${line?}"
  done
}
limited() {
  if [ -n "$gpu" ]; then
    export "$gpus_variable=$gpu"
  fi
  timeout -k 5 "$seconds" "$@" </dev/null 2>&1 8>&- 9>&- &
  child=$!
  trap 'kill -TERM "$child"; exit 143' TERM
  wait "$child"
}
as_job() {
  if [ -n "$leader" ]; then
    tr '\0\n' '\n\001' < "/proc/$leader/environ" | { take_environment; limited "$@"; }
  else
    unset LC_ALL
    limited "$@"
  fi
}
# Whatever the command leaves running may hold its output: two seconds after the command `cat` is ended, and with it the
# reading. fd 8 tells what has ended.
run() {
  gpu=$1 unit=${1:--}
  shift
  {
    { as_job "$@"; echo "status $?" >&8; exec >&-; sleep 2 & echo "grace $!" >&8; wait "$!" && echo late >&8; } |
      { exec 5<&0 </dev/null; cat <&5 5<&- 8>&- & echo "reader $!" >&8; exec 5<&- 8>&-; wait "$!"; } |
      head -c "$cap" 8>&- | { framed "$unit"; echo end >&8; }
  } 8>&1 >/dev/null | {
    status='' grace='' reader='' ended='' held=''
    while read -r word value; do
      case $word in
        status) status=$value ;;
        grace) grace=$value ;;
        reader) reader=$value ;;
        late) [ -n "$ended" ] || { held=' a background process still holds the output'; kill "$reader"; } ;;
        end) ended=1 ;;
      esac
      [ -z "$ended" ] || [ -z "$grace" ] || kill "$grace"
    done
    frame "$unit" "=$status$held"
  }
}
leader=
if [ "$inherits" = job ]; then
  for process in /proc/[0-9]*; do
    of_job "${process#/proc/}" || continue
    case $(readlink "$process/exe") in
      # A script that started the rest has not what it exported to it.
      */sh | */*sh) [ -n "$leader" ] || leader=${process#/proc/} ;;
      *) leader=${process#/proc/}; break ;;
    esac
  done
fi
cd -- "$folder" || cd /
if [ "$each" = gpu ]; then
  gpus='' gpus_variable=CUDA_VISIBLE_DEVICES
  for name in CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES; do
    if [ -n "$leader" ]; then gpus=$(variable "$leader" "$name"); else gpus=$(printenv "$name"); fi
    if [ -n "$gpus" ]; then gpus_variable=$name; break; fi
  done
  [ -n "$gpus" ] || gpus=$(timeout 10 nvidia-smi --query-gpu=index --format=csv,noheader | tr '\n' ',')
  count=0 running=
  while [ -n "$gpus" ]; do
    one=${gpus%%,*}
    case $gpus in *,*) gpus=${gpus#*,} ;; *) gpus= ;; esac
    case $one in '' | *[!A-Za-z0-9:/._-]*) continue ;; esac
    run "$one" "$@" &
    running="$running $!" count=$((count + 1))
  done
  for process in $running; do wait "$process"; done
  [ "$count" -gt 0 ] || frame - "!no GPU of the job is known here"
else
  run '' "$@"
fi
kill -KILL "$watcher"
