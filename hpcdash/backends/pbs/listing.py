"""Asks qstat for jobs, whole lists or some by their ids, and reads what it printed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

import pyarrow as pa
from msgspec import Struct

from hpcdash.backends.pbs.dialects import Dialect, pbs
from hpcdash.backends.pbs.errors import require_success, unreadable
from hpcdash.backends.pbs.records import Form, Records, read_attributes, read_records
from hpcdash.backends.queries import Answer
from hpcdash.backends.tokens import fresh_token
from hpcdash.domain.job_ids import BadJobId, JobId, covers, parse_job_number, pbs_job_id
from hpcdash.errors import UsageError

# What a job's Variable_List is searched for; the awk program writes them as fields of their own.
WORK_DIR_VARIABLE = "PBS_O_WORKDIR"
MARK_VARIABLE = "HPCDASH_MARK"
# What the awk program lets through of each job in DSV.
KEPT = (
    *(
        "Job_Name",
        "Job_Owner",
        "job_state",
        "substate",
        "queue",
        "Account_Name",
        "Priority",
        "comment",
        "depend",
    ),
    *(
        "ctime",
        "qtime",
        "etime",
        "stime",
        "mtime",
        "obittime",
        "history_timestamp",
        "Execution_Time",
    ),
    *("estimated.start_time", "exec_host", "Hold_Types", "Exit_status", "resources_used.walltime"),
    *("Resource_List.select", "Resource_List.nodes", "Resource_List.nodect", "Resource_List.ncpus"),
    *("Resource_List.ngpus", "Resource_List.mem", "Resource_List.walltime"),
    *("array_state_count", "array_indices_submitted", "array_indices_remaining", "max_run_subjobs"),
)
# And of each run, where that is asked for: what it used.
USED = ("resources_used.cput", "resources_used.mem", "run_count")

# A record is a line, but for the byte CA in a value, which PBS writes as ^ and a newline: every
# record begins with the same attribute, before which nobody's value comes. After the records comes
# a line of ours with the exit status of qstat, which a pipe would lose; no value can hold the token
# it begins with.
# A person's variables can be a megabyte of escaped commas, of which an awk may take minutes to find
# the end: a folder's name has 4096 bytes, twice as many where each is escaped.
# Whether there was any record is what the script is to know of the answer: `seen` goes to
# descriptor 3.
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
    count = split("KEPT_FIELDS", names, " ")
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
""".replace("KEPT_FIELDS", " ".join(KEPT))

# 35: it has ended, 153: unknown (with -E only where all are), 1: the login node cannot resolve the
# server that the id names, which is not the one it is configured with, 2: a qstat that knows no -E.
# qstat and qselect exit 0, with nothing printed, for -x where no history is kept.
SCRIPT = (
    r"""
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
narrow='"""
    + _NARROW
    + r"""'
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
            TOKEN=$token FORM=$form WHAT=$what SINCE=$since OWNER=$whole_owner NUMBERS=$numbers TASKS=$tasks \
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
    ask || exit
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
        [ $# -le 5000 ] || ended=$(qselect -x -s F -u "$owner" $when) || exit
    else
        ended=$(qselect -x -s F $when) || exit
    fi
    [ -n "$ended" ] || x=
    ids="$ids $ended"
fi
case $ids in *[0-9]*) tell ;; esac
exit 0
"""
)

# How long each task of an array ran its one row does not say: for hours each is listed, up to so
# many.
_MOST_TASKS = 100_000
_EVERYONES_ENDED = """
        ended=$(qselect -x -s F $when) || exit
"""
_SCRIPT_FOR_HOURS = (
    SCRIPT.replace(" ".join(KEPT), " ".join((*KEPT, *USED)))
    .replace("    ask || exit\nfi\n", "    ask -t || exit\nfi\n")
    .replace("-le 5000", f"-le {_MOST_TASKS}")
    .replace(
        _EVERYONES_ENDED,
        f"""
        ended=$(qselect -x -T -s FX $when) || exit
        set -- $ended
        [ $# -le {_MOST_TASKS} ] || ended=$(qselect -x -s F $when) || exit
""",
    )
)

_FORMS = {
    Dialect.OPENPBS: Form.DSV,
    Dialect.PBS_TEXT: Form.TEXT,
    Dialect.TORQUE: Form.XML,
}
_HEAD = re.compile(rb"^Clock: ([0-9]{1,12})\n(?:Owner: (.*)\n)?", re.MULTILINE)


_IDS_A_COMMAND = 1000


class Want(StrEnum):
    """Which jobs, and how much of each."""

    # Those in the queue.
    NOW = "now"
    # And those that ended a short while ago.
    RECENT = "recent"
    # Those that ended, alone.
    ENDED = "ended"
    # Some jobs by their ids, ended or not.
    NAMED = "named"
    # One job by its id, with everything that is said of it.
    WHOLE = "whole"


class Listing(Struct, frozen=True):
    """A question for jobs.

    `command` is what a person would have called; `job_ids` are those asked for.
    """

    argv: tuple[str, ...]
    command: tuple[str, ...]
    form: Form
    token: str
    job_ids: tuple[JobId, ...] = ()


class Listed(Struct, frozen=True):
    """The answer: records as read_records gives them, and what the login node's clock said, in
    epoch seconds.

    `owner` is whose jobs were asked for, '' for everyone's; text and XML are not narrowed to them.
    """

    records: Records
    clock_epoch_seconds: int
    owner: str = ""


def listing(
    dialect: Dialect,
    want: Want,
    user: str | None = None,
    since_seconds: int = 0,
    job_ids: Sequence[str] = (),
    *,
    for_hours: bool = False,
) -> Listing:
    """Ask for jobs of `user` (None: everyone's, '': one's own), or for `job_ids`; `since_seconds`:
    ended no longer ago.

    `for_hours`: what of USED there is comes too, and each subjob that runs or ended of everyone's
    arrays, of which else there is the parent alone.

    Raises UsageError for what is no job id. Each subjob that runs or ended comes with `job_ids`,
    and with a user's 20 newest arrays. Form and dialect decide what is left to narrow.
    """
    requested = tuple(dict.fromkeys(map(_read_id, job_ids)))
    parts = tuple(dict.fromkeys(_query_id(job) for job in requested))
    form = _FORMS[dialect]
    token = fresh_token()
    whose = "*" if user is None or parts else user
    script = _SCRIPT_FOR_HOURS if for_hours else SCRIPT
    argv = pbs(
        "sh",
        "-c",
        script,
        "sh",
        token,
        str(form),
        str(want),
        str(max(0, since_seconds)),
        whose,
        *parts,
    )
    flags = ("-x",) if want is not Want.NOW else ()
    return Listing(argv, ("qstat", *flags, "-f", *parts), form, token, requested)


def _read_id(text: str) -> JobId:
    try:
        job = pbs_job_id(text)
    except BadJobId as error:
        raise UsageError(str(error), "Write 123, or 123[4] for a task of an array.") from None
    if job.component is not None:
        raise UsageError(f"{text!r} is not a PBS job ID", "Write 123, or 123[4] for an array task.")
    if job.tasks is None or job.has_brackets:
        return job
    return JobId(job.number, job.tasks, has_brackets=True, server=job.server)


def _query_id(job: JobId) -> str:
    """What qstat is given: for several tasks their array."""
    if job.tasks is not None and job.tasks.count > 1:
        return str(JobId(job.number, has_brackets=True, server=job.server))
    return str(job)


def count_commands(want: Want, table: pa.Table, *, is_everyones: bool) -> int:
    """How many of PBS's commands SCRIPT ran for the jobs of an answer: the selections, and a qstat
    for their ids.
    """
    if want is Want.NOW and is_everyones:
        return 1
    describing: int = -(-table.num_rows // _IDS_A_COMMAND)
    if want in (Want.NAMED, Want.WHOLE):
        return max(1, describing)
    # Of one's own jobs the subjobs are selected apart.
    has_arrays = not is_everyones and table["array_id"].null_count < table.num_rows
    selecting: int = (
        1
        if want is Want.ENDED
        else int(not is_everyones) + int(has_arrays) + int(want is Want.RECENT)
    )
    return selecting + describing


def read_listing(answer: Answer, requested: Listing, selected: Sequence[str]) -> Listed:
    """The records with these attributes; raises what the answer's failure stands for."""
    require_success(answer, requested.command)
    start, clock, owner = _read_head(answer, requested)
    records = read_records(
        answer.stdout, requested.form, selected, token=requested.token, start=start
    )
    if records is None:
        raise unreadable(answer, "jobs", requested.command)
    return Listed(records, clock, owner)


def read_whole(answer: Answer, requested: Listing) -> dict[str, str]:
    """Everything said of the first job, in order; {} where there is none."""
    require_success(answer, requested.command)
    start, _, _ = _read_head(answer, requested)
    raw = answer.stdout[start:]
    found = read_attributes(raw, requested.form, token=requested.token)
    if not found and raw.strip() and b"<Data" not in raw:
        raise unreadable(answer, "a job's details", requested.command)
    numbers = {job.number for job in requested.job_ids}
    for job_id, attributes in found:
        # Of several tasks it is their array that was asked for.
        if is_asked(requested, job_id) or ("[]" in job_id and parse_job_number(job_id) in numbers):
            return {"Job Id": job_id, **attributes}
    return {}


def is_asked(requested: Listing, row_id: str) -> bool:
    """Whether a row is one of those asked for by id, or holds tasks of it."""
    try:
        row = pbs_job_id(row_id)
    except BadJobId:
        return False
    return any(covers(job, row) for job in requested.job_ids)


def _read_head(answer: Answer, requested: Listing) -> tuple[int, int, str]:
    """(where the records begin, the clock in epoch seconds, the owner)"""
    found = _HEAD.search(answer.stdout)
    if found is None:
        raise unreadable(answer, "jobs", requested.command)
    return found.end(), int(found[1]), (found[2] or b"").decode("utf-8", "replace")
