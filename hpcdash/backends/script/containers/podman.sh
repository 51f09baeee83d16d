# A signal that kills `podman run` need not reach the container, which is conmon's child: a process
# in a session of its own kills it after this shell. It is in that session before the run begins.
#
# `podman run` ends before its container does where it cannot forward a signal: scancel sends CONT
# and TERM to each process of a job, and TERM ends the runtime that is just forwarding CONT. Podman
# then forwards no more, and dies of TERM, which the container has not received.
# shellcheck shell=bash disable=SC2016
hpcdash_container=hpcdash-$(od -An -N 8 -t x8 /dev/urandom | tr -d " ")
setsid sh -c '
  trap "" HUP INT TERM
  { tail -s 2 --pid="$1" -f /dev/null; podman kill -s KILL "$2"; } &
' sh "$$" "$hpcdash_container" < /dev/null > /dev/null 2>&1
hpcdash_waited() {
  trap "" TERM
  [ -z "${hpcdash_auth-}" ] || rm -f -- "$hpcdash_auth"
  [ "$(podman inspect -f "{{.State.Running}}" "$hpcdash_container" 2>/dev/null)" = true ] || exit "$1"
  podman attach --no-stdin --sig-proxy=false "$hpcdash_container" &
  sleep 0.5
  podman kill -s TERM "$hpcdash_container" >/dev/null 2>&1
  wait "$!"
  exit "$?"
}
