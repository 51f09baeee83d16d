# shellcheck shell=sh
set -e
root=${1:-$HOME/$2}
mkdir -p -- "$root"
umask 077
part=$(mktemp "$root/.login.XXXXXXXX")
trap 'rm -f -- "$part"' EXIT
cat >"$part"
mv -f -- "$part" "$root/login"
printf '%s\n' "$root/login"
