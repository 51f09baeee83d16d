# $1 the folder, $2 where it really is, $3 the file's name, $4 the job's owner or ''. With noclobber
# the file is opened with O_EXCL, which follows no link, not one to nowhere either.
# shellcheck shell=sh disable=SC2046

LC_ALL=C; export LC_ALL
there=$2 file=./$3
cd -P "$1" && [ "$(pwd -P)" = "$there" ] || exit 66
trusted=" 0 $(id -u) $(id -u -- "$4" 2>/dev/null) "
set -f; set -- $(ls -ldn .)
case $trusted in *" $3 "*) ;; *)
  case $1 in ?????w*) case " $(id -G) " in *" $4 "*) ;; *) exit 68;; esac;; *) exit 68;; esac
esac
if [ -h "$file" ]; then exit 69; fi
if [ -e "$file" ]; then exit 70; fi
if ! (umask 0002; set -C; : > "$file"); then
  if [ -h "$file" ]; then exit 69; fi
  if [ -e "$file" ]; then exit 70; fi
  exit 73
fi
if [ -h "$file" ]; then exit 69; fi
# A program that looks often may have taken it already.
if [ ! -e "$file" ]; then exit 0; fi
if [ ! -f "$file" ]; then exit 69; fi
said=$(chgrp -h "$4" "$file" 2>&1) || [ ! -e "$file" ] || printf '%s\n' "$said" >&2
exit 0
