# Constant: paths are passed as arguments, and its output is numbers and words of its own.
# shellcheck shell=sh

while [ "$#" -ge 2 ]; do
  said=ok
  case $1 in
    folder) [ -d "$2" ] || said=absent; [ "$said" = ok ] && { [ -x "$2" ] || said=closed; } ;;
    written) [ -d "$2" ] || said=absent; [ "$said" = ok ] && { [ -w "$2" ] && [ -x "$2" ] || said=closed; } ;;
    cleared) if [ -h "$2" ] || { [ -e "$2" ] && [ ! -d "$2" ]; }; then said=dropped; fi ;;
    file) [ -f "$2" ] || said=absent; [ "$said" = ok ] && { [ -r "$2" ] || said=closed; } ;;
    *) [ -e "$2" ] || said=absent ;;
  esac
  [ "$said" = absent ] && [ -e "$2" ] && said=other
  echo "$said"
  shift 2
done
