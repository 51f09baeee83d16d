# A sticky folder or one's own: in any other the copy could be replaced too. `hpcdash_folder` is the launch's.
# shellcheck shell=sh
# Others could replace the launch's folder. What is run is a copy of this account's own, checked by its digest.
hpcdash_tmp=${TMPDIR:-/tmp}
[ -k "$hpcdash_tmp" ] || [ -O "$hpcdash_tmp" ] || hpcdash_tmp=/tmp
HPCDASH_COPY=$(mktemp -d "$hpcdash_tmp/hpcdash.XXXXXXXX") || exit
export HPCDASH_COPY
trap 'trap "" TERM; rm -rf -- "$HPCDASH_COPY"' EXIT
hpcdash_copy() {
  [ -f "$hpcdash_folder/$2" ] && mkdir -p -- "$HPCDASH_COPY/files" && cat < "$hpcdash_folder/$2" > "$HPCDASH_COPY/$2" &&
    chmod u+x "$HPCDASH_COPY/$2" && [ "$(sha256sum < "$HPCDASH_COPY/$2")" = "$1  -" ] && return
  echo "hpcdash: $hpcdash_folder/$2 differs from the submitted file; others may have replaced it. Nothing started." >&2
  exit 1
}
