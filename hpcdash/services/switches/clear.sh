# $1 to $3 as above, $4 what was there as it was looked at, $5 how many bytes a plain file may hold.
# shellcheck shell=sh disable=SC2046,SC2209

LC_ALL=C; export LC_ALL
there=$2 file=./$3 most=$5
cd -P "$1" && [ "$(pwd -P)" = "$there" ] || exit 66
if [ -h "$file" ]; then thing=link
elif [ -f "$file" ]; then thing=file
elif [ -d "$file" ]; then thing=folder
elif [ -e "$file" ]; then thing=special
else exit 71
fi
[ "$thing" = "$4" ] || exit 74
if [ "$thing" = file ]; then
  set -f; set -- $(ls -ldn -- "$file")
  if [ "$5" -gt "$most" ]; then exit 72; fi
fi
rm -f -- "$file" || exit 73
