"""Answers as qstat, pbsnodes, qdel … of an OpenPBS 23.06 did when the scene beside this file was
recorded.

    standin.py PROGRAM [WORD…]

What was not recorded is refused with exit status 99, so that nobody takes an invented answer for
PBS's. Standard library only: it runs on the login node of a test.
"""

import getopt
import json
import os
import re
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

DELIMITER = b"@@"
SERVER = "pbs01"
VERSION = "23.06.06"
TEXT_WIDTH = 78
NOT_RECORDED = 99
PROGRAMS = (
    *("qstat", "pbsnodes", "qselect", "pbs_rstat"),
    *("qsub", "qdel", "qhold", "qrls", "qrerun", "qalter", "qsig", "qmove"),
)
HERE = Path(__file__).resolve().parent
USAGE_STATUS = 2
# PBS's errors as exit statuses: the last eight bits of their number.
UNKNOWN_JOB, UNAUTHORIZED, FINISHED, BAD_STATE, INVALID = 153, 159, 35, 168, 156
UNKNOWN_SIGNAL, UNKNOWN_QUEUE, CLOSED_QUEUE, FINISHED_SUBJOB = 165, 170, 173, 55
NO_MOM = 222
RUNNING = (b"R", b"E", b"S", b"B")
SIGNALS = ("HUP", "INT", "QUIT", "KILL", "TERM", "USR1", "USR2", "CONT", "STOP", "NULL")


class Refusal(Exception):
    """How a command ends badly: its exit status, and its own words."""

    def __init__(self, status, words):
        super().__init__(words)
        self.status = status
        self.text = words


class Scene:
    """The lists of a scene, read when asked for."""

    def __init__(self, folder):
        self.folder = folder
        self.settings = json.loads((folder / "scene.json").read_text("utf-8"))

    def lines(self, name):
        """The lines of one list, without their ends; none where the scene has no such list."""
        file = self.folder / f"{name}.dsv"
        return file.read_bytes().split(b"\n")[:-1] if file.is_file() else []

    def jobs(self, *, subjobs=False, ended=False):
        """id → line, in the server's order: ended ones before the first of a higher number, subjobs
        behind theirs.
        """
        lines = self.lines("jobs")
        for line in self.lines("ended") if ended else ():
            number = order_of(id_of(line))
            later = (at for at, other in enumerate(lines) if order_of(id_of(other)) > number)
            lines.insert(next(later, len(lines)), line)
        tasks = self.lines("subjobs") if subjobs else []
        found = {}
        for line in lines:
            found[id_of(line)] = line
            array = id_of(line).partition("]")[0] if "[]" in id_of(line) else ""
            found.update(
                (id_of(task), task) for task in tasks if array and id_of(task).startswith(array)
            )
        return {**found, **{id_of(task): task for task in tasks}}

    def write(self, name, lines):
        """Replace one list."""
        text = b"".join(line + b"\n" for line in lines)
        (self.folder / f"{name}.dsv").write_bytes(text)


def id_of(line):
    return line.split(DELIMITER, 1)[0].partition(b": ")[2].decode()


def order_of(job_id):
    number, index = re.match(r"(\d+)(?:\[(\d*)\])?", job_id).groups()
    return int(number), int(index or -1)


def field_value(line, name):
    start = name.encode() + b"="
    return next(
        (field[len(start) :] for field in line.split(DELIMITER) if field.startswith(start)), b""
    )


def owner_of(line):
    return field_value(line, "Job_Owner").partition(b"@")[0].decode()


def full_id(typed):
    return typed if "." in typed else f"{typed}.{SERVER}"


def is_job_id(word):
    return re.match(r"\d+(\[(\d+(-\d+(:\d+)?)?)?\])?(\.|$)", word) is not None


def options_of(words, letters):
    try:
        return getopt.gnu_getopt(words, letters)
    except getopt.GetoptError as error:
        raise Refusal(USAGE_STATUS, f"invalid option -- '{error.opt}'\nusage: ") from error


def not_recorded(words):
    return Refusal(NOT_RECORDED, f"not recorded: {' '.join(words)}")


def write(lines, delimiter):
    """As DSV with this delimiter; None: as text."""
    for line in lines:
        written = as_text(line) if delimiter is None else line.replace(DELIMITER, delimiter)
        sys.stdout.buffer.write(written + b"\n")


def as_text(line):
    """A line of DSV as `qstat -f` prints it: long values go on after a tab, behind a comma where
    there is one.
    """
    head, *fields = line.split(DELIMITER)
    written = [head + b"\n"]
    for field in fields:
        name, _, value = field.partition(b"=")
        # The width of four spaces and ` = `, as qstat counts it.
        column = len(name) + 7
        written.append(b"    " + name + b" = ")
        # Of commas in a row, and of the last, qstat prints none.
        pieces = [piece for piece in value.split(b",") if piece]
        for index, piece in enumerate(pieces):
            if len(piece) + column < TEXT_WIDTH:
                written.append(piece)
                column += len(piece)
            else:
                if index:
                    written.append(b"\n\t")
                    column = 9
                for letter in piece:
                    written.append(bytes([letter]))
                    column += 1
                    if column > TEXT_WIDTH:
                        written.append(b"\n\t")
                        column = 8
            if index < len(pieces) - 1:
                written.append(b",")
        written.append(b"\n")
    return b"".join(written)


def qstat(scene, words):
    if words == ["--version"]:
        sys.stdout.write(f"pbs_version = {scene.settings.get('version', VERSION)}\n")
        return
    knows_formats = scene.settings.get("formats", True)
    options, names = options_of(words, "ainpqrstwxu:fGHJMQEBW:T1" + "F:D:" * knows_formats)
    given = dict(options)
    form = given.get("-F", "text")
    known = {"-f", "-x", "-t", "-Q", "-B", "-F", "-D", "-E"}
    if given.keys() - known or "-f" not in given or form not in ("dsv", "text"):
        raise not_recorded(["qstat", *words])
    if form == "text" and scene.settings.get("lines_in_values") and not given.keys() & {"-Q", "-B"}:
        raise not_recorded(["qstat", *words])
    delimiter = None if form == "text" else os.fsencode(given.get("-D", "|"))
    if "-B" in given:
        write(scene.lines("server"), delimiter)
    elif "-Q" in given:
        write(queues_named(scene, names), delimiter)
    elif "-E" in given and names:
        status_of_jobs_at_once(scene, names, "-x" in given, "-t" in given, delimiter)
    else:
        status_of_jobs(scene, names, "-x" in given, "-t" in given, delimiter)


def queues_named(scene, names):
    queues = {id_of(line): line for line in scene.lines("queues")}
    for name in names:
        if name not in queues:
            raise Refusal(UNKNOWN_QUEUE, f"qstat: Unknown queue destination {name}")
    return [queues[name] for name in names] if names else list(queues.values())


def status_of_jobs_at_once(scene, names, ended, subjobs, delimiter):
    """qstat -E: one request for all ids.

    What is unknown, or has ended, is told only where nothing else is.
    """
    if not all(map(is_job_id, names)):
        raise Refusal(1, "qstat: Express option can only be used with job ids")
    status = 0
    for name in [name for name in names if parse_server(name) != SERVER]:
        sys.stderr.write(f"qstat: illegally formed job identifier: {name}\n")
        status = 1
    job_ids = [full_id(name) for name in names if parse_server(name) == SERVER]
    if ended and not scene.settings.get("history", True):
        raise Refusal(status, f"qstat: PBS is not configured to maintain job history {job_ids[-1]}")
    known = scene.jobs(subjobs=True, ended=True)
    wanted = set()
    for job_id in job_ids:
        wanted.update(array_tasks(job_id) or [job_id])
        if subjobs and "[]" in job_id:
            wanted.update(one for one in known if one.startswith(job_id.partition("]")[0]))
    lines = [line for job_id, line in known.items() if job_id in wanted]
    told = [line for line in lines if ended or field_value(line, "job_state") != b"F"]
    write(told, delimiter)
    if not told and job_ids and not status:
        words = "Job has finished, use -x or -H to obtain historical job information"
        if lines:
            raise Refusal(FINISHED, f"qstat: {job_ids[-1]} {words}")
        raise Refusal(UNKNOWN_JOB, f"qstat: Unknown Job Id {job_ids[-1]}")
    raise Refusal(status, "")


def parse_server(typed):
    return full_id(typed).partition(".")[2]


def status_of_jobs(scene, names, ended, subjobs, delimiter):
    if ended and not scene.settings.get("history", True):
        for name in names or [""]:
            shown = full_id(name) if name else ""
            sys.stderr.write(f"qstat: PBS is not configured to maintain job history {shown}\n")
        return
    listed = scene.jobs(subjobs=subjobs, ended=ended)
    if not names:
        write(listed.values(), delimiter)
        return
    everything = scene.jobs(subjobs=True, ended=True)
    failed = None
    for name in names:
        if not is_job_id(name):
            queues_named(scene, [name])
            write(
                [line for line in listed.values() if field_value(line, "queue").decode() == name],
                delimiter,
            )
            continue
        job_id = full_id(name)
        array = job_id.partition("[")[0] + "["
        line = everything.get(job_id)
        if line is None:
            failed = Refusal(UNKNOWN_JOB, f"qstat: Unknown Job Id {job_id}")
        elif field_value(line, "job_state") == b"F" and not ended:
            words = "Job has finished, use -x or -H to obtain historical job information"
            failed = Refusal(FINISHED, f"qstat: {job_id} {words}")
        elif subjobs and "[]" in job_id:
            write([line for one, line in listed.items() if one.startswith(array)], delimiter)
            continue
        else:
            write([line], delimiter)
            continue
        sys.stderr.write(f"{failed.text}\n")
    if failed is not None:
        raise Refusal(failed.status, "")


def pbsnodes(scene, words):
    options, names = options_of(
        words, "acC:dHjlLno:OrSsv" + "D:F:" * scene.settings.get("formats", True)
    )
    given = dict(options)
    # Without -v a host's vnodes are one.
    which = "vnodes" if "-v" in given else "nodes"
    text = scene.folder / f"{which}.txt"
    if given.keys() - {"-v"} == {"-a"} and text.is_file():
        sys.stdout.buffer.write(text.read_bytes())
        return
    if (
        given.get("-F") != "dsv"
        or given.keys() - {"-a", "-v", "-F", "-D"}
        or not (names or "-a" in given)
    ):
        raise not_recorded(["pbsnodes", *words])
    nodes = {
        line.split(DELIMITER)[0].partition(b"=")[2].decode(): line for line in scene.lines(which)
    }
    for name in names:
        if name not in nodes:
            raise Refusal(1, f"Node: {name},  Error: Unknown node ")
    write(
        [nodes[name] for name in names] if names else nodes.values(),
        os.fsencode(given.get("-D", "|")),
    )


def qselect(scene, words):
    options, _ = options_of(words, "a:A:c:h:HJl:N:p:q:r:s:t:Tu:x")
    given = dict(options)
    if given.keys() - {"-u", "-s", "-x", "-H", "-T", "-t"}:
        raise not_recorded(["qselect", *words])
    since = given.get("-t", "m.ge.197001010000.00")
    if not re.fullmatch(r"m\.ge\.\d{12}\.\d\d", since):
        raise not_recorded(["qselect", *words])
    modified_since = datetime.strptime(since[5:], "%Y%m%d%H%M.%S").replace(tzinfo=UTC)
    ended = bool(given.keys() & {"-x", "-H"})
    if ended and not scene.settings.get("history", True):
        sys.stderr.write("qselect: PBS is not configured to maintain job history \n")
        return
    for job_id, line in scene.jobs(subjobs="-T" in given, ended=ended).items():
        state = field_value(line, "job_state").decode()
        if given.get("-u", owner_of(line)) != owner_of(line) or state not in given.get("-s", state):
            continue
        # -T: subjobs in the place of their arrays.
        if (
            ("-H" in given and state not in "FM")
            or ("-T" in given and "[]" in job_id)
            or (state == "F" and not ended)
        ):
            continue
        if modified_at(line) >= modified_since:
            print(job_id)


def modified_at(line):
    text = field_value(line, "mtime").decode()
    return datetime.strptime(text, "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC)


def refusal_of(scene, program, typed, options):
    """Why something cannot be done to a job, or None where PBS did it without a word."""
    if not is_job_id(typed):
        return Refusal(1, f"{program}: illegally formed job identifier: {typed}")
    job_id = full_id(typed)
    tasks = array_tasks(job_id)
    jobs = scene.jobs(subjobs=True, ended=True)
    array = jobs.get(f"{job_id.partition('[')[0]}[].{SERVER}") if tasks else None
    lines = (
        [line for line in (jobs.get(task) for task in tasks) if line]
        if tasks
        else [jobs.get(job_id)]
    )
    line = next(iter(lines), None) or array
    unknown = Refusal(
        UNKNOWN_JOB, f"{program}: Unknown Job Id {typed if program == 'qdel' else job_id}"
    )
    if line is None:
        return unknown
    states = [field_value(one, "job_state") for one in lines]
    runs = any(state in RUNNING for state in states)
    bad_state = Refusal(BAD_STATE, f"{program}: Request invalid for state of job {job_id}")
    unauthorized = Refusal(UNAUTHORIZED, f"{program}: Unauthorized Request  {job_id}")
    if field_value(array or line, "job_state") == b"F":
        return (
            None if "-x" in options else Refusal(FINISHED, f"{program}: Job has finished {job_id}")
        )
    # Who may not do it hears nothing of the state.
    if owner_of(line) != scene.settings["user"] or program == "qrerun":
        return unauthorized
    if program == "qsig":
        wanted = options.get("-s", "TERM")
        if wanted in ("suspend", "resume"):
            return unauthorized
        if wanted.removeprefix("SIG") not in SIGNALS and not wanted.isdigit():
            return Refusal(UNKNOWN_SIGNAL, f"qsig: Unknown/illegal signal name {job_id}")
        if tasks and not lines:
            return unknown
        if not runs and len(tasks) > 1:
            # The server never answers.
            hang()
        if runs and is_down(scene, lines):
            return Refusal(NO_MOM, f"qsig: Server could not connect to MOM {job_id}")
        return None if runs else bad_state
    if runs and program != "qmove" and options.get("-W") != "force" and is_down(scene, lines):
        return Refusal(NO_MOM, f"{program}: Server could not connect to MOM {job_id}")
    if tasks and (program in ("qhold", "qrls", "qalter", "qmove") or not lines):
        return Refusal(INVALID, f"{program}: Invalid request {job_id}")
    if program == "qdel" and states == [b"X"]:
        return Refusal(FINISHED_SUBJOB, f"qdel: Request invalid for finished array subjob {job_id}")
    return bad_state if program == "qmove" and runs else None


def is_down(scene, lines):
    """Whether the first host of a job, whose daemon the server asks, is down."""
    hosts = {field_value(line, "exec_host").partition(b"/")[0] for line in lines} - {b""}
    nodes = {
        line.split(DELIMITER)[0].partition(b"=")[2]: field_value(line, "state")
        for line in scene.lines("nodes")
    }
    return any(b"down" in nodes.get(host, b"").split(b",") for host in hosts)


def array_tasks(job_id):
    """The subjobs that 12[3].pbs01, 12[3-5].pbs01 and 12[1-9:2].pbs01 name; none for a job and an
    array.
    """
    found = re.match(r"(\d+)\[(\d+)(?:-(\d+)(?::(\d+))?)?\](.*)", job_id)
    if not found:
        return []
    number, low, high, step, server = found.groups()
    return [
        f"{number}[{task}]{server}"
        for task in range(int(low), int(high or low) + 1, int(step or 1))
    ]


def with_fields(line, **values):
    """A line with these values in place of its own; a field that it lacks is added."""
    fields = line.split(DELIMITER)
    for name, value in values.items():
        start = f"{name}=".encode()
        at = next((at for at, field in enumerate(fields) if field.startswith(start)), len(fields))
        fields[at : at + 1] = [start + value.encode()]
    return DELIMITER.join(fields)


# What becomes of a job by each command, as 23.06 had it then.
CHANGES = {
    "qhold": {"job_state": "H", "Hold_Types": "u", "substate": "20"},
    "qrls": {"job_state": "Q", "Hold_Types": "n", "substate": "10"},
    "qdel": {"job_state": "F", "substate": "91"},
}


def carry_out(scene, program, job_id, options, destination):
    """Change the list of jobs, where the scene says that its server acts; a job that runs only
    ends.
    """
    lines = scene.lines("jobs")
    line = next((line for line in lines if id_of(line) == job_id), None)
    if not scene.settings.get("acts") or line is None:
        return
    runs = field_value(line, "job_state") in RUNNING
    values = dict(CHANGES.get(program, {})) if not runs or program == "qdel" else {}
    if program == "qmove":
        values["queue"] = destination
    if program == "qalter" and "-A" in options:
        values["Account_Name"] = options["-A"]
    changed = with_fields(line, **values)
    if program == "qdel":
        scene.write("jobs", [one for one in lines if one is not line])
        scene.write("ended", [*scene.lines("ended"), changed])
    else:
        scene.write("jobs", [changed if one is line else one for one in lines])


def add_job(scene, job_id, job):
    """List a job that qsub took, like the first one that waits there."""
    lines = scene.lines("jobs")
    pattern = next(
        line
        for line in lines
        if field_value(line, "job_state") == b"Q" and owner_of(line) == scene.settings["user"]
    )
    folder = os.getcwd()
    pattern = pattern.replace(b"/home/alice/work", os.fsencode(folder))
    variables = field_value(pattern, "Variable_List").decode()
    given = job.get("-v", "")
    values = {
        "Job_Name": job.get("-N", "STDIN"),
        "queue": job.get("-q", "workq"),
        "Variable_List": ",".join(filter(None, (variables, given))),
        "comment": "",
        **CHANGES["qhold" if "-h" in job else "qrls"],
    }
    _, *fields = with_fields(pattern, **values).split(DELIMITER)
    scene.write("jobs", [*lines, DELIMITER.join([f"Job Id: {job_id}".encode(), *fields])])


def hang():
    while True:
        signal.pause()


def act(scene, program, words):
    """qdel and its like: what they say is what was said of jobs in this state. Nothing changes,
    unless the scene `acts`.
    """
    destination = ""
    letters = {
        "qdel": "W:x",
        "qhold": "h:",
        "qrls": "h:",
        "qrerun": "W:",
        "qsig": "s:",
        "qmove": "",
    }
    options, names = options_of(
        words, letters.get(program, "a:A:c:C:e:h:j:k:l:m:M:N:o:p:P:q:r:R:S:u:W:")
    )
    if program == "qmove":
        destination, *names = names
        queues = {id_of(line): line for line in scene.lines("queues")}
        if destination not in queues:
            raise Refusal(UNKNOWN_QUEUE, f"qmove: Unknown queue {full_id(names[0])}")
        if field_value(queues[destination], "enabled") == b"False":
            raise Refusal(CLOSED_QUEUE, f"qmove: Queue is not enabled {full_id(names[0])}")
    status = 0
    for typed in names:
        refused = refusal_of(scene, program, typed, dict(options))
        if refused is not None:
            sys.stderr.write(f"{refused.text}\n")
            status = refused.status
        else:
            carry_out(scene, program, full_id(typed), dict(options), destination)
    raise Refusal(status, "")


QSUB_OPTIONS = "a:A:c:C:e:fhIj:J:k:l:m:M:N:o:p:P:q:r:R:S:u:v:VW:Xz"
QSUB_USAGE = """usage: qsub [-a date_time] [-A account_string] [-c interval]
\t[-C directive_prefix] [-e path] [-f ] [-h ] [-I [-X]] [-j oe|eo] [-J X-Y[:Z]]
\t[-k keep] [-l resource_list] [-m mail_options] [-M user_list]
\t[-N jobname] [-o path] [-p priority] [-P project] [-q queue] [-r y|n]
\t[-R o|e|oe] [-S path] [-u user_list] [-W otherattributes=value...]
\t[-v variable_list] [-V ] [-z] [script | -- command [arg1 ...]]
       qsub --version"""
# What a value of each option looks like; of another one qsub says: illegal -J value.
QSUB_VALUES = {
    "-a": r"\d{4}|\d{6}|\d{8}|\d{10}|\d{12}|\d+\.\d\d",
    "-j": r"oe|eo|n",
    "-J": r"(\d+)-(\d+)(:\d+)?(%\d+)?",
    "-k": r"nd?|d*[oe][oed]*",
    "-m": r"n|[abej]+",
    "-N": r"[A-Za-z0-9+._-]+",
    "-p": r"[-+]?(10[01]\d|102[0-3]|\d{1,3})|-1024",
    "-r": r"[yn]",
    "-R": r"[oe]+",
}
# Attributes of -W with what qsub takes for them; another value is an illegal -W value.
QSUB_ATTRIBUTES = {
    "block": r"(?i)true|false",
    "depend": r".+",
    "group_list": r".+",
    "interactive": r"(?i)true|false",
    "max_run_subjobs": r"\d+",
    "run_count": r"\d+",
    "sandbox": r"PRIVATE|HOME|O_WORKDIR",
    "stagein": r".+@.+:.+",
    "stageout": r".+@.+:.+",
    "tolerate_node_failures": r"all|job_start|none",
    "umask": r"\d+",
}
DEPENDENCIES = r"(after|before)(ok|notok|any)?:[^[,]+(\[\][^[,]*)*|on:\d+"
# Those of a host: beside a select or a place qsub takes them in the select alone.
OF_A_CHUNK = ("ncpus", "ngpus", "mem", "vmem", "mpiprocs", "ompthreads", "host", "vnode", "arch")
MAX_NAME_LETTERS = 230
OF_A_JOB = (
    "walltime",
    "min_walltime",
    "max_walltime",
    "cput",
    "pcput",
    "pmem",
    "pvmem",
    "file",
    "nice",
    "software",
)
SIZE = r"\d+([kmgtp]?[bw])?"
AMOUNTS = {
    "ncpus": r"\d+",
    "ngpus": r"\d+",
    "mpiprocs": r"\d+",
    "ompthreads": r"\d+",
    "mem": SIZE,
    "vmem": SIZE,
}
TIME = r"\d+(:\d+){0,2}(\.\d+)?"
PLACE = r"(free|pack|scatter|vscatter)?(^|:|$)(excl|exclhost|shared)?(^|:|$)(group=\w+)?"
BAD_RESOURCE, BAD_VALUE = "Illegal attribute or resource value", 166


def qsub(scene, words):
    """Takes what a real one took, under the number after the last; refuses the rest as that did, in
    its words.
    """
    try:
        options, rest = getopt.gnu_getopt(words, QSUB_OPTIONS)
    except getopt.GetoptError as error:
        raise usage_of_qsub(invalid_option(error)) from error
    if len(rest) > 1:
        raise Refusal(USAGE_STATUS, QSUB_USAGE)
    if rest and not Path(rest[0]).is_file():
        raise Refusal(1, "qsub: script file:: No such file or directory")
    script = (
        Path(rest[0]).read_bytes()
        if rest
        else b""
        if sys.stdin.isatty()
        else sys.stdin.buffer.read()
    )
    job = {"-l": {}, "-W": {}}
    try:
        set_options(job, options, set())
    except NotRerunable as error:
        raise usage_of_qsub(str(error)) from error
    on_line = set(job) - {"-l", "-W"}
    text = script.decode("utf-8", "replace")
    for line in directives_of(text, job.get("-C", "#PBS")):
        said = words_of(line)
        try:
            found, others = getopt.gnu_getopt(said, QSUB_OPTIONS)
        except getopt.GetoptError as error:
            raise Refusal(
                1, f"{invalid_option(error)}\nqsub: directive error: {' '.join(said)} "
            ) from error
        if others:
            raise Refusal(1, f"qsub: directive error: {' '.join(said)} ")
        try:
            set_options(job, found, on_line)
        except NotRerunable as error:
            raise Refusal(1, f"{error}\nqsub: directive error: {' '.join(said)} ") from error
    check_attributes(scene, job)
    check_queue(scene, job, *check_resources(scene, job["-l"]))
    last = max((order_of(job_id)[0] for job_id in scene.jobs(ended=True)), default=0)
    taken = HERE / "taken"
    number = last + 1 + (len(taken.read_bytes()) if taken.is_file() else 0)
    with taken.open("ab") as file:
        file.write(b".")
    if scene.settings.get("acts"):
        add_job(scene, f"{number}.{SERVER}", job)
        taken.unlink()
    if "-z" not in job:
        print(f"{number}[].{SERVER}" if "-J" in job else f"{number}.{SERVER}")


class NotRerunable(Exception):
    """An array with -r n."""


def usage_of_qsub(words):
    return Refusal(USAGE_STATUS, f"{words}\n{QSUB_USAGE}")


def invalid_option(error):
    if "requires argument" in error.msg:
        return f"qsub: option requires an argument -- '{error.opt}'"
    return (
        "qsub: invalid option -- "
        f"'{error.opt[:1] if error.opt in QSUB_OPTIONS or len(error.opt) == 1 else '-'}'"
    )


def set_options(job, options, on_line):
    """Into `job`, in qsub's order; those that stand `on_line` beat a directive's.

    Of -l a script's first counts.
    """
    for letter, value in options:
        pattern = QSUB_VALUES.get(letter)
        found = re.fullmatch(pattern, value) if pattern else True
        if not found or (letter == "-J" and int(found[1]) >= int(found[2])):
            raise usage_of_qsub(f"qsub: illegal {letter} value")
        if letter == "-N" and len(value) > MAX_NAME_LETTERS:
            raise Refusal(USAGE_STATUS, "qsub: Job name is too long ")
        if letter == "-I":
            raise Refusal(
                1,
                "qsub:\tstandard input and output must be a terminal for\n\tinteractive job "
                "submission",
            )
        if letter == "-l":
            for item in value.split(","):
                name, _, amount = item.strip().partition("=")
                job["-l"].setdefault(name, amount)
        elif letter == "-W":
            job["-W"].update(attributes_of(value))
        elif letter in on_line:
            continue
        elif (letter == "-J" and job.get("-r") == "n") or (
            letter == "-r" and value == "n" and "-J" in job
        ):
            raise NotRerunable("qsub:  cannot submit non-rerunable Array Job")
        else:
            job[letter] = value


def attributes_of(value):
    """NAME=VALUE of -W; what stands behind a comma without a name is the value's before it."""
    found = {}
    name = None
    for item in value.split(","):
        if named := re.match(r"\s*([A-Za-z_]+)\s*=(.*)", item):
            name, found[named[1]] = named[1], named[2]
        elif name is None:
            raise usage_of_qsub("qsub: illegal -W value")
        else:
            found[name] += f",{item}"
    for name, text in found.items():
        if name not in QSUB_ATTRIBUTES:
            raise Refusal(154, "qsub: Error (15002) submitting job")
        parts = text.split(",") if name == "depend" else [text]
        pattern = DEPENDENCIES if name == "depend" else QSUB_ATTRIBUTES[name]
        if not all(re.fullmatch(pattern, part) for part in parts):
            is_of_a_task = name == "depend" and re.search(r"\[\d", text) is not None
            why = "cannot have dependancy on subjob or range\n" if is_of_a_task else ""
            raise usage_of_qsub(f"{why}qsub: illegal -W value")
    return found


def directives_of(text, prefix):
    """What stands behind the prefix of each line before the first command."""
    for line in text.split("\n"):
        stripped = line.lstrip()
        if prefix and stripped.startswith(prefix):
            yield stripped[len(prefix) :].rstrip("\r")
        elif stripped and not stripped.startswith("#") and not line.startswith(":"):
            return


def words_of(text):
    words, word, at = [], None, 0
    while at < len(text):
        letter = text[at]
        if letter.isspace():
            words += [] if word is None else [word]
            word = None
        elif letter in "\"'":
            end = text.find(letter, at + 1)
            if end < 0:
                raise Refusal(1, "qsub: unmatched ")
            word = (word or "") + text[at + 1 : end]
            at = end
        else:
            word = (word or "") + letter
        at += 1
    return words if word is None else [*words, word]


def check_attributes(scene, job):
    array, groups = job.get("-J"), (scene.settings["user"], *scene.settings.get("groups", ()))
    if "j" in job.get("-m", "") and not array:
        raise Refusal(1, "qsub: mail option 'j' can not be used without array job")
    for item in job.get("-v", "").split(",") if job.get("-v") else ():
        name, equals, value = item.partition("=")
        if re.search(r"(?<!\\)[\"']", value) and not re.fullmatch(r"(\"[^\"]*\"|'[^']*')", value):
            raise Refusal(1, "qsub: cannot send environment with the job")
        # Behind a comma that a backslash protects the value goes on.
        if not equals and name not in os.environ and f"\\,{name}" not in job["-v"]:
            raise Refusal(1, "qsub: cannot send environment with the job")
    if "max_run_subjobs" in job["-W"] and not array:
        raise Refusal(127, "qsub: Attribute has to be set on an array job")
    for group in job["-W"].get("group_list", "").split(",") if "group_list" in job["-W"] else ():
        if group.partition("@")[0] not in groups:
            raise Refusal(197, "qsub: Bad GID for job execution")
    most = (
        int(field_value(scene.lines("server")[0], "max_array_size") or 10000)
        if scene.lines("server")
        else 10000
    )
    if array:
        first, last, step = (
            int(part or 1) for part in re.match(r"(\d+)-(\d+)(?::(\d+))?", array).groups()
        )
        if (last - first) // step + 1 > most:
            raise Refusal(3, "qsub: Array job exceeds server or queue size limit")


def check_resources(scene, asked):
    """(CPUs, GPUs, seconds) of the whole job, None where it does not say."""
    listed = b"".join(
        (*scene.lines("nodes"), *scene.lines("vnodes"), *scene.lines("queues"))
    ).decode("utf-8", "replace")
    known = {
        *OF_A_CHUNK,
        *OF_A_JOB,
        "select",
        "place",
        "nodes",
        "nodect",
        *re.findall(r"resources_\w+\.(\w+)=", listed),
    }
    for name, amount in asked.items():
        if name and name not in known:
            raise Refusal(187, f"qsub: Unknown resource Resource_List.{name}")
        is_bad = (
            (name == "place" and (not re.fullmatch(PLACE, amount) or not amount))
            or (name in AMOUNTS and not re.fullmatch(AMOUNTS[name], amount))
            or (name in ("walltime", "cput", "pcput") and amount and not re.fullmatch(TIME, amount))
        )
        if is_bad:
            raise Refusal(BAD_VALUE, f"qsub: {BAD_RESOURCE} Resource_List.{name}")
    if re.search(r":gpus=", asked.get("nodes", "")):
        raise Refusal(241, "qsub: node(s) specification error")
    is_chunked = "select" in asked or "place" in asked
    if is_chunked and "nodes" in asked:
        raise Refusal(6, "qsub: Cannot be used with select or place: nodes")
    for name in OF_A_CHUNK if is_chunked else ():
        if name in asked:
            words = f'"-lresource=" cannot be used with "select" or "place", resource is: {name}'
            raise Refusal(5, f"qsub: {words}")
    group = re.search(r"group=(\w+)", asked.get("place", ""))
    if group is not None and group[1] not in known:
        raise Refusal(187, "qsub: Unknown resource Resource_List.place")
    totals = {"ncpus": 0, "ngpus": 0}
    for chunk in asked["select"].split("+") if "select" in asked else ():
        count, *parts = chunk.split(":")
        if not count.isdecimal():
            count, parts = "1", [count, *parts]
        if any("=" not in part for part in parts):
            raise Refusal(BAD_VALUE, f"qsub: {BAD_RESOURCE} Resource_List.select")
        if not int(count):
            raise Refusal(BAD_VALUE, f"qsub: {BAD_RESOURCE}")
        given = {"ncpus": "1", **dict(part.split("=", 1) for part in parts)}
        for name, amount in given.items():
            if name not in known:
                raise Refusal(187, f"qsub: Unknown resource: {name}")
            if name in AMOUNTS and not re.fullmatch(AMOUNTS[name], amount):
                raise Refusal(BAD_VALUE, f"qsub: {BAD_RESOURCE} select.{name}")
        for name in totals:
            totals[name] += int(count) * int(given.get(name, 0))
    seconds = None
    if time := asked.get("walltime"):
        seconds = 0
        for part in time.partition(".")[0].split(":"):
            seconds = seconds * 60 + int(part)
    return (
        totals["ncpus"] if "select" in asked else None,
        totals["ngpus"] if "select" in asked else None,
        seconds,
    )


def check_queue(scene, job, cpus, gpus, seconds):
    queues = {id_of(line): line for line in scene.lines("queues")}
    default = (
        field_value(scene.lines("server")[0], "default_queue").decode()
        if scene.lines("server")
        else ""
    )
    name = job.get("-q", default).partition("@")[0]
    if name not in queues:
        raise Refusal(UNKNOWN_QUEUE, "qsub: Unknown queue")
    queue = queues[name]
    if field_value(queue, "enabled") == b"False":
        raise Refusal(CLOSED_QUEUE, "qsub: Queue is not enabled")
    allowed = field_value(queue, "acl_users").decode().split(",")
    if field_value(queue, "acl_user_enable") == b"True" and scene.settings["user"] not in allowed:
        raise Refusal(UNAUTHORIZED, "qsub: Unauthorized Request ")
    for resource, amount in (("ncpus", cpus), ("ngpus", gpus)):
        most = field_value(queue, f"resources_max.{resource}")
        if most and amount is not None and amount > int(most):
            raise Refusal(188, "qsub: Job violates queue and/or server resource limits")
    longest = field_value(queue, "resources_max.walltime").decode()
    if longest and seconds is not None:
        hours, minutes, rest = map(int, longest.split(":"))
        if seconds > (hours * 60 + minutes) * 60 + rest:
            raise Refusal(188, "qsub: Job violates queue and/or server resource limits")


def unreachable(program, reason):
    """What a command says of a server that it cannot reach."""
    named = {
        "qstat": (255, f"qstat: cannot connect to server {SERVER} (errno=15010)"),
        "pbsnodes": (1, f"pbsnodes: cannot connect to server {SERVER}, error=15010"),
        "qdel": (162, f"Couldn't connect to cluster: {SERVER}"),
        "pbs_rstat": (162, "pbs_rstat: cannot connect to server (errno=15010)"),
    }
    status, words = named.get(
        program, (162, f"{program}: cannot connect to server {SERVER} (errno=15010)")
    )
    return Refusal(status, f"{reason}\n{words}")


def answer(scene, program, words):
    if program == "date":
        # Time stands still, and those who ask are the people of the recording.
        if words not in (["+%s"], ["-u", "+%s"]):
            os.execv("/bin/date", ["date", *words])
        print(scene.settings["clock"])
    elif program == "id":
        if words not in (["-un"], ["-Gn"]):
            os.execv("/usr/bin/id", ["id", *words])
        print(scene.settings["user"])
    elif words == ["--version"]:
        qstat(scene, words)
    elif scene.settings.get("hung"):
        hang()
    elif "unreachable" in scene.settings:
        raise unreachable(program, scene.settings["unreachable"])
    elif program == "pbs_rstat":
        return
    elif program in ("qstat", "pbsnodes", "qselect", "qsub"):
        {"qstat": qstat, "pbsnodes": pbsnodes, "qselect": qselect, "qsub": qsub}[program](
            scene, words
        )
    else:
        act(scene, program, words)


def main():
    program, *words = sys.argv[1:]
    with (HERE / "called").open("a", encoding="utf-8") as file:
        file.write(json.dumps([program, *words]) + "\n")
    try:
        answer(Scene(HERE / "scene"), program, words)
    except Refusal as refusal:
        sys.stdout.flush()
        if refusal.text:
            sys.stderr.write(f"{refusal.text}\n")
        return refusal.status
    return 0


if __name__ == "__main__":
    sys.exit(main())
