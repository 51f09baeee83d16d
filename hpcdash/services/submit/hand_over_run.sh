# $2 is the run's name, $3 not '' where its folder is there already; a tar of its files comes on stdin. A run is there
# whole or not at all.
# shellcheck shell=sh
{ test -n "$3" || mkdir -m 700 -- "./.$2"; } && cd -P -- "./.$2" || exit 19
tar -xof - && sha256sum -c SHA256SUMS >/dev/null && cd .. && mv -- "./.$2" "./$2" && exit 0
cd "$here/runs" && rm -rf -- "./.$2"
exit 19
