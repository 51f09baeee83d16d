# A line a run: its name, when it started, how and when it ended, its title.
# shellcheck shell=sh
for one in [0-9]*; do
  test -d "$one" && test ! -L "$one" || continue
  printf '%s\t%s\t%s\t%s\n' "$one" "$(head -c 40 "$one/started" 2>/dev/null)" \
    "$(head -c 40 "$one/ended" 2>/dev/null)" "$(head -c 200 "$one/title" 2>/dev/null | tr '\t\n' '  ')"
done
