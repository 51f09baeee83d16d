# $1 the launch program, $2 the storage root: prints why they are not to be trusted. It calls `weak_spot`.
# shellcheck shell=sh

why=$(weak_spot "$1" root)
[ "$why" ] || { [ -f "$1" ] && [ -x "$1" ]; } || why="$1 is not a program"
[ "$why" ] || why=$(weak_spot "$2" root sticky)
[ "$why" ] || [ -d "$2" ] || why="$2 is not a folder"
printf '%s\n' "$why"
