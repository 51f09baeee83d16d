# `in_use` ends with 0 where something runs in the allocation, 1 where nothing does, 2 where that is unknown; `gpu_use`
# prints the use of each GPU in percent, and counts where `hpcdash_counts_gpus` is set. Both are checked each
# `hpcdash_every` s.
# shellcheck shell=bash
hpcdash_warned='' hpcdash_checked_at=$(date +%s)
# Sets `hpcdash_unknown` to what the check could not find, and then the allocation counts as used.
check_use() {
  hpcdash_unknown=''
  in_use
  case $? in
    0) hpcdash_used_at=$hpcdash_checked_at; return ;;
    1) ;;
    *) hpcdash_unknown="process list" ;;
  esac
  if [ -z "$hpcdash_unknown" ] && [ -n "$hpcdash_counts_gpus" ]; then
    case $(gpu_use 2>/dev/null | tr -d ' \t\r') in
      '' | *[!0-9.$'\n']*) hpcdash_unknown="GPU activity" ;;
      *[1-9]*) hpcdash_used_at=$hpcdash_checked_at ;;
    esac
  fi
  [ -n "$hpcdash_unknown" ] || return
  hpcdash_used_at=$hpcdash_checked_at
  [ -n "$hpcdash_warned" ] || echo "hpcdash: idle time is not enforced: $hpcdash_unknown unavailable" >&2
  hpcdash_warned=1
}
end_if_idle() {
  [ "$(($(date +%s) - hpcdash_checked_at))" -ge "$hpcdash_every" ] || return 0
  hpcdash_checked_at=$(date +%s)
  check_use
  if [ "$((hpcdash_checked_at - hpcdash_used_at))" -ge "$hpcdash_idle" ]; then
    # Nothing is taken any more; what came a moment ago is run.
    : > closed
    sleep 3
    find_run
    if [ -z "$hpcdash_next" ]; then
      echo "hpcdash: no run for $hpcdash_idle s: ending the allocation (--idle-limit)"
      exit 0
    fi
    rm -f -- closed
  fi
}
