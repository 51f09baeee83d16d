# shellcheck shell=bash
# What starts the ranks passes it on to them. It may be about to start.
signal_nodes() {
  pkill --signal "$1" --parent "$!" && return
  sleep 1
  pkill --signal "$1" --parent "$!" || kill -s "$1" "$!"
}
