"""The sh script that asks qstat for jobs and leaves out on the login node what nobody reads. Knows no column's meaning.

Of 20 000 jobs `qstat -f` prints 25 MB, of which half is the environment they were submitted with. Each call of qstat
costs the server a second at that size, and each id it is given a port of the login node for a minute: a few ids are
asked one by one, more are picked from the whole list.
"""

from __future__ import annotations

# What a job's Variable_List is searched for; the awk program writes them as fields of their own.
WORK_DIR_VARIABLE = "PBS_O_WORKDIR"
MARK_VARIABLE = "HPCDASH_MARK"
# What the awk program lets through of each job in DSV.
KEPT = (
    *("Job_Name", "Job_Owner", "job_state", "substate", "queue", "Account_Name", "Priority", "comment", "depend"),
    *("ctime", "qtime", "etime", "stime", "mtime", "obittime", "history_timestamp", "Execution_Time"),
    *("estimated.start_time", "exec_host", "Hold_Types", "Exit_status", "resources_used.walltime"),
    *("Resource_List.select", "Resource_List.nodes", "Resource_List.nodect", "Resource_List.ncpus"),
    *("Resource_List.ngpus", "Resource_List.mem", "Resource_List.walltime"),
    *("array_state_count", "array_indices_submitted", "array_indices_remaining", "max_run_subjobs"),
)

# A record is a line, but for the byte CA in a value, which PBS writes as ^ and a newline: every record begins with the
# same attribute, before which nobody's value comes. After the records comes a line of ours with the exit status of
# qstat, which a pipe would lose; no value can hold the token it begins with.
# A person's variables can be a megabyte of escaped commas, of which an awk may take minutes to find the end: a folder's
# name has 4096 bytes, twice as many where each is escaped.
# What the script is to know of the answer goes to descriptor 3: `seen`, and the arrays whose subjobs are to be asked.
_NARROW = r"""
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
function array(id, state, count) {
    if (!ARRAYS || id !~ /^[0-9]+\[\][A-Za-z0-9._:-]*$/) return
    if (WHAT != "ended" && count ~ /(Running|Exiting):[1-9]/) note(id)
    else if (WHAT != "now" && (state == "F" || count ~ /Expired:[1-9]/)) note(id)
}
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
    if (!SUBJOBS && ARRAYS && index(id, "[]")) array(id, state, field("array_state_count"))
    if (WHAT == "ended" && !ended || WHAT == "now" && ended || WHAT == "recent" && state == "M") return
    if (SUBJOBS && state == "Q" && !index(id, "[]")) return
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
    ARRAYS = ENVIRON["ARRAYS"]; SUBJOBS = ENVIRON["SUBJOBS"]; FORM = ENVIRON["FORM"]
    count = split("KEPT_FIELDS", names, " ")
    for (i = 1; i <= count; i++) kept[names[i]] = 1
    named = split(ENVIRON["NUMBERS"], names, " ")
    for (i = 1; i <= named; i++) { sub(/[^0-9].*/, "", names[i]); wanted[names[i]] = 1 }
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
    if (/^Job Id: /) { if (!seen) note("seen"); seen = 1; id = $3; state = owner = "" }
    else if ($1 == "Job_Owner") owner = $3
    else if ($1 == "job_state") state = $3
    else if ($1 == "array_state_count" && !SUBJOBS)
        if (OWNER == "" || index(owner, OWNER "@") == 1) array(id, state, $0)
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
""".replace("KEPT_FIELDS", " ".join(KEPT))

# 35: it has ended, 153: unknown, 1: the login node cannot resolve the server that the id names, which is not the one it
# is configured with. qstat and qselect exit 0, with nothing printed, for -x where no history is kept.
SCRIPT = (
    r"""
set -f
token=$1 form=$2 what=$3 since=$4 whose=$5
shift 5
now=$(date +%s) || exit
echo "Clock: $now"
[ "$since" -eq 0 ] || since=$((now - since))
arrays= owner= numbers= subjobs=
exec 4>&1
narrow='"""
    + _NARROW
    + r"""'
ask() {
    subjobs=
    [ "$1" != -t ] && [ "$2" != -t ] || subjobs=1
    case $form in
    dsv) set -- -f -F dsv -D "$token" "$@" ;;
    xml) [ -n "$subjobs" ] || set -- -t "$@"; set -- -x "$@" ;;
    *) set -- -f "$@" ;;
    esac
    case $form in
    dsv | text)
        found=$({ qstat "$@"; printf '%sexit %s\n' "$token" "$?"; } |
            TOKEN=$token FORM=$form WHAT=$what SINCE=$since ARRAYS=$arrays OWNER=$owner NUMBERS=$numbers \
                SUBJOBS=$subjobs awk "$narrow" 3>&1 >&4) ;;
    *) found=seen; qstat "$@" ;;
    esac
}
tell() {
    t=
    case $what,$1 in whole,*) ;; *"[]"*) t=-t ;; esac
    ask $x $t "$1" && { [ -z "$x" ] || [ -n "$found" ] || ask $t "$1"; }
}
one_by_one() {
    answered= unknown=0
    for id; do
        tell "$id"; status=$?
        case $form,$status,$what,$id in
        *"["*) ;;
        xml,153,*) ask; exit ;;
        *,153,named,* | *,153,whole,*)
            number=${id%%.*}
            tell "${number}[]${id#"$number"}"; status=$? ;;
        esac
        case $status,$what in
        0,*) answered=1 ;;
        35,* | 153,*) unknown=$status ;;
        1,whole) exit 1 ;;
        1,*) numbers=$*; return ;;
        *) exit "$status" ;;
        esac
    done
    case $answered,$what in ,named | ,whole) exit "$unknown" ;; esac
    exit 0
}
case $form,$what in xml,* | *,now) x= ;; *) x=-x ;; esac
case $whose in
"*") ;;
"") owner=$(id -un) || exit ;;
*) owner=$whose ;;
esac
[ -z "$owner" ] || printf 'Owner: %s\n' "$owner"
# Slurm's qstat asks for all jobs whatever it is given, and exits 153 where it prints none.
if [ "$form" = wrapped ]; then
    for long in -f ""; do
        qstat $long "$@"; status=$?
        case $status,$# in 0,* | 153,0) ;; *) exit "$status" ;; esac
        [ -z "$long" ] || printf '\n%s\n' "$token"
    done
    exit 0
fi
if [ -n "$owner" ] && { [ "$form" != xml ] || [ "$what" = now ]; }; then
    ids=$(qselect $x -u "$owner"); status=$?
    if [ "$status,$what,$ids" = 0,recent, ]; then
        x=
        ids=$(qselect -u "$owner"); status=$?
    fi
    [ "$status" -eq 0 ] || exit "$status"
    [ -n "$ids" ] || exit 0
    set -- $ids
    case $#,$form in [1234],dsv | [1234],text) owner= ;; *) set -- ;; esac
fi
case $form,$* in xml,*"[]"*) ask; exit ;; esac
case $# in 0) ;; [1234]) one_by_one "$@" ;; *) numbers=$* ;; esac
[ -z "$owner$numbers" ] || arrays=1
ask $x; status=$?
if [ "$status" -eq 0 ] && [ -n "$x" ] && [ -z "$found" ] && [ "$what" != ended ]; then
    x=
    ask; status=$?
fi
[ "$status" -eq 0 ] || exit "$status"
case $form in dsv | text) ;; *) exit 0 ;; esac
owner= numbers=
for id in $(printf '%s\n' $found | grep '\[' | sort -rn | head -n 20); do
    ask $x -t "$id"; status=$?
    case $status in 0 | 35 | 153) ;; *) exit "$status" ;; esac
done
exit 0
"""
)
