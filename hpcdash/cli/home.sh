# shellcheck shell=sh

echo "$HOME"
stat -f -c %T "$HOME" 2>/dev/null || echo
if test -w "$HOME"; then echo yes; else echo no; fi
