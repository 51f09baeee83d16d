# $1 the configured folder of launches, '' for the one below the home; $2 a kill switch to check, if any. It calls
# `weak_spot`.
# shellcheck shell=sh disable=SC3067
root=${1:-$HOME/hpcdash/launches}
printf '%s\n' "$(id -u)" "$root"
test ! -e "$root" || test -O "$root" || echo shared
# Others may put files into a shared root.
login=$root/login
if test -f "$login" && test -O "$login" && test ! -h "$login"; then echo login; fi
why=$(weak_spot "$root")
[ -z "$why" ] || printf '%s%s\n' 'weak ' "$why"
[ ! "$2" ] || if [ -h "$2" ] || { [ -e "$2" ] && [ ! -d "$2" ]; }; then echo dropped; fi
