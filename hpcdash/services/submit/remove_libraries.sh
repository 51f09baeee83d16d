# Folders of launches: removes each library that no launch has a link of, and prints its KiB.
# shellcheck shell=sh disable=SC3067
for root; do
  (
    cd -P -- "$root/.library" 2>/dev/null && test ! -L "$root/.library" && test -O . || exit
    for each in *.zip; do
      test -f "./$each" && test ! -L "./$each" && test "$(stat -c %h "./$each")" = 1 || continue
      size=$(du -k "./$each" | cut -f 1)
      rm -f -- "./$each" && echo "$size"
    done
  )
done
