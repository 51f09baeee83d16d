# Takes the variables of a process over: $1 is its folder in /proc, $2 a regular expression without
# groups for their names. Values stand in '…', so that nothing in them is read; those that a shell
# keeps for itself are left out.
# shellcheck shell=sh

adopt() {
  eval "$(tr '\n\0' '\001\n' 2>/dev/null < "$1/environ" | LC_ALL=C sed -n -E \
    -e '/^(UID|EUID|PPID|SHELLOPTS|BASHOPTS|TERM|_)=/d' -e "s/'/'\\\\''/g" -e "s/^($2)=(.*)\$/export \1='\2'/p" \
    | tr '\001' '\n')"
}
