# Delivers the run $2 from a tar on stdin, completely or not at all; $3 is not '' if its folder exists already.
# shellcheck shell=sh
{ test -n "$3" || mkdir -m 700 -- "./.$2"; } && cd -P -- "./.$2" || exit 19
tar -xof - && sha256sum -c SHA256SUMS >/dev/null && cd .. && mv -- "./.$2" "./$2" && exit 0
cd "$here/runs" && rm -rf -- "./.$2"
exit 19
