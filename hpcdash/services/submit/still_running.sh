# The mark is passed in two arguments, so that this command is not among those it finds.
# shellcheck shell=sh
ps -eo args= | while read -r line; do
    case $line in *"$1$2"*) echo "still there"; exit ;; esac
done
