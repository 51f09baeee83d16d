# $1 the script's path, whose folder is made; stdin is its content, put there in one step. It calls `refuse_replaceable`.
# shellcheck shell=sh
refuse_replaceable "$1"
folder=$(dirname -- "$1") && mkdir -p -- "$folder" || exit 73
refuse_replaceable "$folder"
new=$(mktemp "$folder/.new.XXXXXX") || exit 73
cat > "$new" && chmod 700 -- "$new" && mv -f -- "$new" "$1" || { rm -f -- "$new"; exit 73; }
