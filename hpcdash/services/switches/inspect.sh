# $1 a token that no file's name can forge, $2 the folder, $3 the file's name in it, $4 the job's
# owner or ''.
# Prints `TOKENkey value\n` for each thing that is known, and the token last. No time of a file is
# in POSIX's commands by the second: both kinds of stat are tried.
# shellcheck shell=sh

LC_ALL=C TZ=UTC0; export LC_ALL TZ
token=$1 folder=$2 file=./$3 owner=$4
tell() { printf '%s%s %s\n' "$token" "$1" "$2"; }
changed() { stat -c %Y -- "$1" 2>/dev/null || stat -f %m -- "$1" 2>/dev/null; }
entry() {
  tell "$1-n" "$(ls -ldn -- "$2" 2>/dev/null)"; tell "$1-o" "$(ls -ldo -- "$2" 2>/dev/null)"
  tell "$1-g" "$(ls -ldg -- "$2" 2>/dev/null)"; tell "$1-at" "$(changed "$2")"
}
tell now "$(date +%s)"; tell me "$(id -u) $(id -un)"; tell groups "$(id -G)"
[ ! "$owner" ] || tell owner-uid "$(id -u -- "$owner" 2>/dev/null)"
if [ -h "$folder" ] && [ ! -e "$folder" ]; then tell problem 'the folder is a link to nowhere'
elif [ ! -e "$folder" ]; then tell problem 'the folder does not exist, or a folder above it cannot be entered'
elif [ ! -d "$folder" ]; then tell problem 'the path of the folder is not a folder'
elif ! cd -P "$folder" 2>/dev/null; then tell problem 'the folder cannot be entered: no permission'
else
  tell there "$(pwd -P)"; entry folder .
  if [ -w . ]; then tell writable yes; fi
  if [ -h "$file" ]; then tell thing link
  elif [ -f "$file" ]; then tell thing file
  elif [ -d "$file" ]; then tell thing folder
  elif [ -e "$file" ]; then tell thing special
  else tell thing nothing
  fi
  if [ -h "$file" ] || [ -e "$file" ]; then entry file "$file"; fi
fi
printf '%s' "$token"
