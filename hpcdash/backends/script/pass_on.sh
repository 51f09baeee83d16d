# shellcheck shell=bash
pass_on() {
  interrupted=1
  signal_nodes "$1"
}
