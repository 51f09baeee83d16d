# `kept` names the attributes of each job that are let through in DSV. `each_task` is set where each subjob is wanted of
# everyone's arrays, of which else there is the parent alone, and `most_tasks` is how many ended ones are listed.
# A record is a line, but for the byte CA in a value, which PBS writes as ^ and a newline: every
# record begins with the same attribute, before which nobody's value comes. After the records comes
# a line of ours with the exit status of qstat, which a pipe would lose; no value can hold the token
# it begins with.
# A person's variables can be a megabyte of escaped commas, of which an awk may take minutes to find
# the end: a folder's name has 4096 bytes, twice as many where each is escaped.
# Whether there was any record is what the script is to know of the answer: `seen` goes to
# descriptor 3.
# 35: it has ended, 153: unknown (with -E only where all are), 1: the login node cannot resolve the
# server that the id names, which is not the one it is configured with, 2: a qstat that knows no -E.
# qstat and qselect exit 0, with nothing printed, for -x where no history is kept.
# shellcheck shell=sh disable=SC1007,SC2016,SC2086

set -f
token=$1 form=$2 what=$3 since=$4 whose=$5
shift 5
now=$(date +%s) || exit
echo "Clock: $now"
when=
if [ "$since" -ne 0 ]; then
    since=$((now - since))
    when=$(date -d "@$since" +%Y%m%d%H%M.%S 2>/dev/null) && when=-tm.ge.$when
fi
blanks=$IFS newline='
'
owner= whole_owner= numbers= tasks= t= ids=
exec 4>&1
narrow='
function field(name,    head, at, rest) {
    head = T name "="
    at = index(record, head)
    if (!at) return ""
    rest = substr(record, at + length(head))
    at = index(rest, T)
    return at ? substr(rest, 1, at - 1) : rest
}
function variable(list, name,    rest, at, value, tries) {
    rest = "," list
    while ((at = index(rest, "," name "=")) > 1 && substr(rest, at - 1, 1) == "\\") {
        if (++tries > 9) return ""
        rest = substr(rest, at + 1)
    }
    if (!at) return ""
    rest = substr(rest, at + length(name) + 2, 9000)
    while (at = index(rest, ",")) {
        value = value substr(rest, 1, at - 1)
        if (substr(rest, at - 1, 1) != "\\") return value
        value = value ","
        rest = substr(rest, at + 1)
    }
    return length(rest) + length(value) < 9000 ? value rest : ""
}
function note(word) { print word | "cat >&3" }
function job(    id, number, state, ended, when, parts, line, i, name, value) {
    if (!seen) note("seen")
    seen = 1
    if (WHAT == "whole") { print record; return }
    if (OWNER != "" && !index(record, T "Job_Owner=" OWNER "@")) return
    id = substr(record, 9, index(record, T) - 9)
    if (named) {
        number = id
        sub(/[^0-9].*/, "", number)
        if (!(number in wanted)) return
    }
    state = field("job_state")
    ended = state == "F" || state == "X"
    when = ended && SINCE ? field("history_timestamp") : ""
    if (when != "" && when + 0 < SINCE + 0) return
    if (WHAT == "ended" && !ended || WHAT == "now" && ended || WHAT == "recent" && state == "M") return
    if (SUBJOBS && state == "Q" && id ~ /\[[0-9]/) {
        sub(/\..*/, "", id)
        if (!(id in tasks)) return
    }
    parts = split(record, part, T)
    line = part[1]
    for (i = 2; i <= parts; i++)
        if (substr(part[i], 1, index(part[i], "=") - 1) in kept) line = line T part[i]
    value = field("Variable_List")
    if (name = variable(value, "PBS_O_WORKDIR")) line = line T "PBS_O_WORKDIR=" name
    if (name = variable(value, "HPCDASH_MARK")) line = line T "HPCDASH_MARK=" name
    print line
}
BEGIN {
    T = ENVIRON["TOKEN"]; WHAT = ENVIRON["WHAT"]; OWNER = ENVIRON["OWNER"]; SINCE = ENVIRON["SINCE"]
    SUBJOBS = ENVIRON["SUBJOBS"]; FORM = ENVIRON["FORM"]
    count = split(ENVIRON["KEPT"], names, " ")
    for (i = 1; i <= count; i++) kept[names[i]] = 1
    named = split(ENVIRON["NUMBERS"], names, " ")
    for (i = 1; i <= named; i++) { sub(/[^0-9].*/, "", names[i]); wanted[names[i]] = 1 }
    count = split(ENVIRON["TASKS"], names, " ")
    for (i = 1; i <= count; i++) { sub(/\..*/, "", names[i]); tasks[names[i]] = 1 }
    status = 255
}
{
    if (at = index($0, T "exit ")) {
        status = substr($0, at + length(T) + 5) + 0
        $0 = substr($0, 1, at - 1)
        if ($0 == "") next
    }
}
FORM == "text" {
    print
    if (/^Job Id: /) { if (!seen) note("seen"); seen = 1 }
    next
}
{
    at = index($0, T)
    name = at ? substr($0, at + length(T), index($0, "=") - at - length(T)) : ""
    if (index($0, "Job Id: ") == 1 && (record == "" || name == first)) {
        if (record != "") job()
        else first = name
        record = $0
    } else if (record != "") record = record "\n" $0
    else print
}
END {
    if (record != "") job()
    exit status
}
'
ask() {
    case " $* " in *" -t "*) subjobs=1 ;; *) subjobs= ;; esac
    case $form in
    dsv) set -- -f -F dsv -D "$token" "$@" ;;
    xml) [ -n "$subjobs" ] || set -- -t "$@"; set -- -x "$@" ;;
    *) set -- -f "$@" ;;
    esac
    case $form in
    dsv | text)
        found=$({ qstat "$@"; printf '%sexit %s
' "$token" "$?"; } |
            TOKEN=$token KEPT=$kept FORM=$form WHAT=$what SINCE=$since OWNER=$whole_owner NUMBERS=$numbers TASKS=$tasks \
                SUBJOBS=$subjobs awk "$narrow" 3>&1 >&4)
        ;;
    *) found=seen; qstat "$@" ;;
    esac
}
# The ids, a thousand to a connection.
tell() {
    answered= unknown=0
    lines=$(printf '%s\n' $ids | awk '{ printf "%s%s", $0, NR % 1000 ? " " : "\n" }') || exit
    IFS=$newline
    for line in $lines; do
        IFS=$blanks
        ask -E $x $t $line; status=$?
        [ -z "$found" ] || answered=1
        case $status in
        0) ;;
        35 | 153) unknown=$status ;;
        1 | 2) in_list "$status"; return ;;
        *) exit "$status" ;;
        esac
    done
    IFS=$blanks
    [ "$x,$answered,$unknown" = -x,,0 ] || return 0
    x=
    tell
}
# Where -E is of no use: a few ids one by one, else all jobs there are, of which those that are wanted are let through.
in_list() {
    [ "$1,$what" != 1,whole ] || exit 1
    few=$(printf '%s\n' $ids | awk 'END { if (NR <= 50) print 1 }') || exit
    if [ "$1,$few" = 2,1 ]; then
        ask $x $t $ids; status=$?
    else
        whole_owner=$owner
        [ -n "$owner" ] && [ -z "$few" ] || numbers=$ids
        ask $x -t; status=$?
    fi
    [ -z "$found" ] || answered=1
    case $status in 0) ;; 35 | 153) unknown=$status ;; *) exit "$status" ;; esac
}
case $whose in
"*") ;;
"") owner=$(id -un) || exit ;;
*) owner=$whose ;;
esac
[ -z "$owner" ] || printf 'Owner: %s\n' "$owner"
if [ "$form" = xml ]; then
    if [ -n "$owner" ] && [ "$what" = now ]; then
        ids=$(qselect -u "$owner") || exit
        [ -n "$ids" ] || exit 0
    fi
    case $#,$* in
    1,*"[]"*) ;;
    1,*) ask "$1"; status=$?; [ "$status" -eq 153 ] || exit "$status" ;;
    esac
    ask
    exit
fi
case $what in now) x= ;; *) x=-x ;; esac
if [ $# -gt 0 ]; then
    # A bare number may be an array's, of which the subjobs are wanted too.
    [ "$what" = whole ] || t=-t
    tasks=$*
    for id; do
        number=${id%%[!0-9]*}
        case $id in *"["*) ;; *) ids="$ids ${number}[]${id#"$number"}" ;; esac
        ids="$ids $id"
    done
    tell
    [ -n "$answered" ] || exit "$unknown"
    exit 0
fi
if [ -z "$owner" ] && [ "$what" != ended ]; then
    ask ${each_task:+-t} || exit
fi
if [ -n "$owner" ] && [ "$what" != ended ]; then
    ids=$(qselect -u "$owner") || exit
    case $ids in *"[]"*) ids="$ids $(qselect -T -u "$owner" -s RESU | grep '\[')" ;; esac
fi
if [ "$what" != now ]; then
    if [ -n "$owner" ]; then
        # Each ended task; where these are too many, each array.
        ended=$(qselect -x -T -s FX -u "$owner" $when) || exit
        set -- $ended
        [ $# -le "$most_tasks" ] || ended=$(qselect -x -s F -u "$owner" $when) || exit
    elif [ -n "$each_task" ]; then
        ended=$(qselect -x -T -s FX $when) || exit
        set -- $ended
        [ $# -le "$most_tasks" ] || ended=$(qselect -x -s F $when) || exit
    else
        ended=$(qselect -x -s F $when) || exit
    fi
    [ -n "$ended" ] || x=
    ids="$ids $ended"
fi
case $ids in *[0-9]*) tell ;; esac
exit 0
