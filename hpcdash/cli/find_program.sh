# Several lines for a shell: the first of the programs that is there, the home, and where caches
# are.
# shellcheck shell=sh
found=
for program; do command -v "$program" >/dev/null 2>&1 && { found=$program; break; }; done
printf '%s\n' "$found" "$HOME" "${XDG_CACHE_HOME:-$HOME/.cache}"
