# Prints `hpcdash site none`, `… unsafe` or `… rules` and the text of site.toml in a folder. Safe are root's own folder
# and file that all can read and nobody else can write to, and no links.
# shellcheck shell=sh
folder=$1
file=$folder/site.toml
if [ ! -e "$file" ] && [ ! -h "$file" ]; then
  echo 'hpcdash site none'
  exit
fi
safe=$(find "$folder" "$file" -prune \( -type d -o -type f \) -user 0 ! -perm -020 ! -perm -002 -print 2>/dev/null)
if [ -r "$file" ] && [ "$safe" = "$folder
$file" ]; then
  echo 'hpcdash site rules'
  head -c 65537 "$file"
else
  echo 'hpcdash site unsafe'
fi
