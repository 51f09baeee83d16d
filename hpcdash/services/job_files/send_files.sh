# $1 token, $2 folder, then for each file below it: its name, its identity, how many of its bytes have arrived before, and
# their SHA-256. Prints for each `TOKEN start SIZE MODIFIED BEGIN`, the bytes from BEGIN to SIZE, and `TOKEN sum SHA256` of all
# bytes up to SIZE; or `TOKEN PROBLEM`. What is opened is what was listed: another file under the name, such as a link, is not
# read.
# shellcheck shell=sh
LC_ALL=C; export LC_ALL
token=$1; shift
cd -P -- "$1" || { printf '%s no-folder\n' "$token"; exit 0; }
shift
facts() { stat -L -c '%d:%i %s %Y' - <&3; }
# $1 how many bytes of a file of $2 bytes.
sum() { if [ "$1" -eq "$2" ]; then sha256sum; else head -c "$1" | sha256sum; fi <&3; }
while [ $# -gt 3 ]; do
  name=$1 identity=$2 begin=$3 known=$4 size=; shift 4
  if [ -h "./$name" ] || [ ! -f "./$name" ]; then printf '%s gone\n' "$token"; continue; fi
  if [ "$begin" -gt 0 ]; then
    { [ "$(sum "$begin" -1)" = "$known  -" ] || begin=0; } 3<"./$name" || begin=0
  fi
  {
    found=$(facts)
    if [ "${found%% *}" = "$identity" ]; then
      found=${found#* }
      size=${found% *}
      [ "$begin" -le "$size" ] || begin=0
      printf '%s start %s %s\n' "$token" "$found" "$begin"
      if [ "$begin" -gt 0 ]; then tail -c +"$((begin + 1))" <&3 | head -c "$((size - begin))"; else head -c "$size" <&3; fi
    else printf '%s changed\n' "$token"
    fi
  } 3<"./$name" || { [ "$size" ] || printf '%s closed\n' "$token"; }
  [ "$size" ] || continue
  {
    found=$(facts)
    if [ "${found%% *}" = "$identity" ]; then
      found=${found#* }
      found=$(sum "$size" "${found% *}")
      printf '%s sum %s\n' "$token" "${found%% *}"
    else printf '%s changed\n' "$token"
    fi
  } 3<"./$name" || printf '%s changed\n' "$token"
done
printf '%s end\n' "$token"
