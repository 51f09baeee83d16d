# shellcheck shell=sh

in_proc() {
  sed -n -E 's/^(State|Threads|VmRSS):[[:space:]]*/  \1: /p' "$of/status"
  for task in "$of"/task/*; do
    echo "  thread ${task##*/} $(cat "$task/comm"): $(sed -n 's/^State:[[:space:]]*//p' "$task/status")," \
      "waits in $(cat "$task/wchan" 2>/dev/null || echo '?')"
    sed 's/^/    /' "$task/stack" 2>/dev/null
  done 2>/dev/null | head -n 60
}
count=0 missing=
for of in /proc/[0-9]*; do
  [ -O "$of" ] || continue
  case $(readlink "$of/exe" 2>/dev/null) in */python* | */pypy*) ;; *) continue ;; esac
  of_job "${of#/proc/}" || continue
  count=$((count + 1))
  rank=$(rank_of "${of#/proc/}")
  echo "process ${of#/proc/}${rank:+, rank $rank}: $(tr '\0\n' '  ' < "$of/cmdline" 2>/dev/null | cut -c 1-300)"
  tool=$(PATH="$PATH:$HOME/.local/bin:$(variable "${of#/proc/}" PATH)"; command -v py-spy)
  if [ -z "$tool" ]; then
    missing=1
    in_proc
  elif said=$(timeout -k 2 10 "$tool" dump --nonblocking --pid "${of#/proc/}" 2>&1); then
    printf '%s\n' "$said"
  else
    echo "  py-spy ended with $?: $(printf '%s\n' "$said" | tail -n 1); from /proc:"
    in_proc
  fi
done
[ "$count" -gt 0 ] || echo "no visible Python process of the job"
[ -z "$missing" ] || echo "py-spy is not installed; it shows Python stacks: pip install --user py-spy"
