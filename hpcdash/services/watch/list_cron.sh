# shellcheck shell=sh

token=$1 folder=$2
[ "$folder" ] || folder=$HOME/$3
printf '%sfolder %s\n' "$token" "$folder"
for script in "$folder"/scheduler/*.sh; do
  [ -f "$script" ] || continue
  name=${script##*/}; label=${name#hpcdash-}; label=${label%.sh}
  printf '%sjob %s\n' "$token" "$name"
  for one in "$folder/cron.$label"/*; do
    [ -f "$one" ] && printf '%sscript %s\n' "$token" "${one##*/}"
  done
done
printf '%send' "$token"
