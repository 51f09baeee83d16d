# A word that begins with / is the folder of the names after it. The names are hints: what they name
# is read elsewhere.
# shellcheck shell=sh
token=$1
shift
for word do
  case $word in
    /*) base=$word; continue ;;
  esac
  printf '%s\n' "$token"
  for path in "$base/$word"/result*; do
    printf '%s\n' "${path##*/}"
  done
done
