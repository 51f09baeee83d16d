# A file server dates what is written; on a disk of the node's own this finds nothing.
# shellcheck shell=bash
file=$(mktemp ./.hpcdash-check.XXXXXX 2> /dev/null || mktemp "$HOME/.hpcdash-check.XXXXXX") || exit 77
apart=$(($(date +%s) - $(stat -c %Y -- "$file")))
rm -f -- "$file"
[ "${apart#-}" -le 5 ] || { echo "differs by $apart s from the file system of $PWD"; exit 1; }
case $(timedatectl show -p NTPSynchronized --value 2> /dev/null) in
  no) echo 'not synchronized by NTP' ;;
  *) echo "within ${apart#-} s of the file system's" ;;
esac
