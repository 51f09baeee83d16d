# $1 token, $2 folder, then for each entry of it: its identity and its name. Prints `TOKEN RESULT` for each: deleted, gone,
# changed (another file has the name now), refused, partly. What is deleted is moved into a folder that only this account can
# write to, checked there, and only then removed. It calls `is_at` and `enter_own`.
# shellcheck shell=sh
LC_ALL=C; export LC_ALL
token=$1 root=$2; shift 2
cd -P -- "$root" && is_at "$root" || exit 9
identity() { stat -c %d:%i -- "$1" 2>/dev/null; }
remove() {
  [ -e "../$2" ] || [ -h "../$2" ] || { echo gone; return; }
  [ "$(identity "../$2")" = "$1" ] || { echo changed; return; }
  mv -T -- "../$2" ./it || { echo refused; return; }
  if [ "$(identity ./it)" != "$1" ]; then
    mv -nT -- ./it "../$2"
    echo changed
    return
  fi
  rm -rf --one-file-system -- ./it
  if [ -e ./it ] || [ -h ./it ]; then echo partly; else echo deleted; fi
}
name=.hpcdash-deleting-$$
enter_own "$name" || { echo "no permission to write to $root" >&2; exit 10; }
while [ $# -gt 1 ]; do
  printf '%s %s\n' "$token" "$(remove "$1" "$2")"
  shift 2
done
cd .. && rmdir -- "./$name" 2>/dev/null
exit 0
