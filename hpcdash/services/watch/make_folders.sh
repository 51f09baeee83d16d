# Makes folders, and refuses those that others could replace. It calls `refuse_replaceable`.
# shellcheck shell=sh
for folder do refuse_replaceable "$folder"; done
mkdir -p -- "$@" || exit
for folder do refuse_replaceable "$folder"; done
