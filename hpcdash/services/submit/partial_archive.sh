# partial_archive DIGEST: sets `part` in a cache folder to the part of an archive that did not arrive whole, '' for
# none; not to one that a shell still writes.
# shellcheck shell=sh
partial_archive() {
  part=
  for one in "./$1".*.part; do
    test -f "$one" && test ! -L "$one" || continue
    owner=${one#"./$1."}
    owner=${owner%.part}
    if test "${owner%.*}" = "$(uname -n)" && ! kill -0 "${owner##*.}" 2>/dev/null; then part=$one; fi
  done
}
