"""The runner's command line, and bash that makes a venv for it out of a wheel or a project.

Pure text. It needs bash and coreutils on the node; PY_EXEC is the Python that starts the runner.
Raises ValueError for what no shell line can say.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

# Function that removes the venv as the script ends; a script with an EXIT trap of its own calls it
# there.
FINISH = "hpcdash_finish"
# Mark of a venv made here: imports come from the packages installed in it.
VENV_MARK = "hpcdash-packaged"
_PYTHON = ('"$PY_EXEC"', True)
_INDEX = "${SLURM_ARRAY_TASK_ID:-${PBS_ARRAY_INDEX:-${PBS_ARRAYID:-}}}"


@dataclass(frozen=True)
class RunnerCall:
    """The runner's command line.

    Paths are those of the node; with `array_items_file` or `task` each task of an array has its own
    output: `results/out.pkl` becomes `results/out-7.pkl`. `task` is the variable that has its
    number, by default that of the scheduler it finds itself in.
    """

    module: str
    function: str
    job_dir: str
    args_file: str | None = None
    kwargs_file: str | None = None
    callbacks_file: str | None = None
    stdout_path: str | None = None
    stderr_path: str | None = None
    pre_submission_id: str | None = None
    output_file: str | None = None
    sys_path: tuple[str, ...] = ()
    loglevel: str | None = None
    array_items_file: str | None = None
    task: str = ""
    callbacks: tuple[str, ...] = ()
    main: str | None = None
    result_format: str | None = None

    def words(self) -> tuple[tuple[str, bool], ...]:
        """Return the command as words, for a container's runtime to run as well.

        A word is (text, whether it is bash source that the node expands, such as `"$PY_EXEC"`, and
        not literal).
        """
        options: list[tuple[str, bool]] = []
        for name in (
            "module", "function", "args_file", "kwargs_file", "callbacks_file", "job_dir", "stdout_path", "stderr_path",
            "pre_submission_id", "loglevel", "array_items_file", "main", "result_format",
        ):  # fmt: skip
            if getattr(self, name) is not None:
                options.append(_option(name, _quoted(getattr(self, name))))
        options += [_option("sys_path", _quoted(path)) for path in self.sys_path]
        options += [_option("callback", _quoted(name)) for name in self.callbacks]
        if self.array_items_file:
            options.append(_option("array_index", self._index()))
        if self.output_file:
            options.append(_option("output_file", self._output()))
        return (_PYTHON, ("-m", False), ("hpcdash.job.runner", False), *options)

    def _output(self) -> str:
        path = self.output_file or ""
        if not (self.array_items_file or self.task):
            return _quoted(path)
        folder, slash, name = path.rpartition("/")
        stem, dot, ending = name.rpartition(".")
        if not stem:
            stem, dot, ending = name, "", ""
        return (
            _quoted(folder + slash + stem + "-")
            + self._index()
            + (_quoted(dot + ending) if dot else "")
        )

    def _index(self) -> str:
        return f'"${self.task}"' if self.task else f'"{_INDEX}"'


@dataclass(frozen=True)
class Packaged:
    """`before` are lines of bash for before the runner, `after` lines for when the script ends,
    however it does.
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def lines(self) -> tuple[str, ...]:
        """Return the lines before the runner's command.

        A trap runs `after` when the script ends.
        """
        finish = (
            f"{FINISH}() {{",
            *(f"  {line}" for line in self.after),
            "}",
            f"trap {FINISH} EXIT",
        )
        return (*(finish if self.after else ()), *self.before)


def _python(python: str) -> str:
    return (
        f'PY_EXEC="${{PY_EXEC:-}}"; [ -n "$PY_EXEC" ] || PY_EXEC={_quoted(python)}; export PY_EXEC'
    )


def _build_command(python: str, source: str, folder: str, isolated: bool) -> str:
    parts = [python, "-m pip wheel --quiet --disable-pip-version-check --no-deps"]
    parts += [] if isolated else ["--no-build-isolation"]
    return " ".join([*parts, "--wheel-dir", folder, "--", source])


def wheel_packaging(
    folder: str,
    *,
    wheel: str = "",
    source: str = "",
    python: str = "python",
    isolated: bool | None = False,
    array_tasks: int = 1,
    stale_seconds: int = 180,
) -> Packaged:
    """A venv of the job's own with a wheel in it, given as a file or built on the node from a
    project's folder.

    `folder`, absolute and on a file system that all nodes share, is for the venv alone. Whoever of
    the job's array comes first builds, the others wait; a builder that showed no life for
    `stale_seconds` is replaced. When the last of `array_tasks` has ended, the venv is removed.
    `isolated` None: pip fetches what the build needs where the build fails without. For the batch
    script, not for each rank of srun.
    """
    if bool(wheel) == bool(source):
        raise ValueError("give either wheel, a .whl file, or source, the folder of a project")
    if not folder.startswith("/"):
        raise ValueError(f"folder: {folder!r} is not absolute, and a job may start anywhere")
    if array_tasks < 1 or stale_seconds < 1:
        raise ValueError("array_tasks and stale_seconds are numbers of 1 or more")
    build = _build_in_venv(_quoted(source), isolated) + " &&\n    " if source else ""
    install = _INSTALL.format(
        build=build,
        mark=VENV_MARK,
        wheel='"$hpcdash_mine"/wheel/*.whl' if source else _quoted(wheel),
    )
    return Packaged(
        before=(
            _python(python),
            *_WHERE.format(folder=_quoted(folder), index=_INDEX).splitlines(),
            *install.splitlines(),
            *_LOCK.format(stale_seconds=stale_seconds).splitlines(),
        ),
        after=(*_LEAVE.splitlines(), *_REMOVE.format(array_tasks=array_tasks).splitlines()),
    )


def _build_in_venv(source: str, isolated: bool | None) -> str:
    commands = (
        _build_command('"$PY_EXEC"', source, '"$hpcdash_mine/wheel"', each)
        for each in (False, True)
    )
    first, fetching = (
        command.replace(" --wheel-dir", " \\\n        --wheel-dir", 1) for command in commands
    )
    if isolated is not None:
        return fetching if isolated else first
    return f'{{ {first} || {{\n      echo "hpcdash: {_AGAIN}" >&2\n      {fetching}; }}; }}'


_AGAIN = "it is built once more, with what its build needs fetched by pip"
_WHERE = """\
hpcdash_root={folder}
hpcdash_me="$HOSTNAME.$$.$RANDOM"
hpcdash_mine="$hpcdash_root/venv.$hpcdash_me"
hpcdash_venv="$hpcdash_root/venv"
hpcdash_lock="$hpcdash_root/lock"
hpcdash_beat=
hpcdash_done="$hpcdash_root/done.{index}"
mkdir -p -- "$hpcdash_root" || exit 1
rm -f -- "$hpcdash_done\""""

# PYTHONPATH would have pip take a package for installed.
_INSTALL = """\
hpcdash_install() {{
  rm -rf -- "$hpcdash_mine" && "$PY_EXEC" -m venv "$hpcdash_mine" &&
    {build}PYTHONPATH='' "$hpcdash_mine/bin/python" -m pip install --quiet --disable-pip-version-check --no-input \\
      -- {wheel} && : > "$hpcdash_mine/{mark}"
}}"""

# mkdir is whole on every file system, which flock is not. Were two to build at once, each would
# have a folder of its own, and the first link stands: the lock spares work, and nothing breaks
# without it.
_LOCK = """\
hpcdash_unlock() {{
  [ -z "$hpcdash_beat" ] || kill "$hpcdash_beat" 2>/dev/null || :
  hpcdash_beat=
  if rm -- "$hpcdash_lock/$hpcdash_me" 2>/dev/null; then rmdir -- "$hpcdash_lock" 2>/dev/null || :; fi
}}
hpcdash_last=
hpcdash_still=0
hpcdash_refused=0
until [ -e "$hpcdash_venv/pyvenv.cfg" ]; do
  if mkdir -- "$hpcdash_lock" 2>/dev/null; then
    : > "$hpcdash_lock/$hpcdash_me"
    (while sleep 5 && kill -0 "$$"; do touch -c -- "$hpcdash_lock"; done) > /dev/null 2>&1 < /dev/null &
    hpcdash_beat=$!
    if [ ! -e "$hpcdash_venv/pyvenv.cfg" ]; then
      rm -f -- "$hpcdash_venv"
      if ! hpcdash_install; then
        echo "hpcdash: the environment of the job could not be made in $hpcdash_mine on $HOSTNAME" >&2
        exit 1
      fi
      ln -sT -- "$hpcdash_mine" "$hpcdash_venv" 2>/dev/null || rm -rf -- "$hpcdash_mine"
    fi
    hpcdash_unlock
  elif hpcdash_now=$(stat -c '%i %y' -- "$hpcdash_lock" 2>/dev/null); then
    hpcdash_refused=0
    if [ "$hpcdash_now" != "$hpcdash_last" ]; then
      hpcdash_last=$hpcdash_now
      hpcdash_still=0
    elif [ "$((hpcdash_still += 1))" -ge {stale_seconds} ]; then
      echo "hpcdash: who locked $hpcdash_lock shows no life; its lock is taken away" >&2
      rm -rf -- "$hpcdash_lock"
      hpcdash_still=0
    fi
    sleep 1
  elif [ "$((hpcdash_refused += 1))" -gt 5 ]; then
    echo "hpcdash: $hpcdash_lock cannot be made: is $hpcdash_root writable, and the quota not used up?" >&2
    exit 1
  fi
done
PY_EXEC="$(readlink -- "$hpcdash_venv")/bin/python"
export PY_EXEC"""

_LEAVE = """\
set +e
[ -n "${hpcdash_root:-}" ] || return 0
if [ -n "$hpcdash_beat" ]; then hpcdash_unlock; fi
if [ "$(readlink -- "$hpcdash_venv")" != "$hpcdash_mine" ]; then rm -rf -- "$hpcdash_mine"; fi"""

_REMOVE = """\
: > "$hpcdash_done"
set -- "$hpcdash_root"/done.*
[ "$#" -ge {array_tasks} ] || return 0
rm -f -- "$hpcdash_venv"
rm -rf -- "$hpcdash_root"/venv.* "$hpcdash_lock"
rm -f -- "$hpcdash_root"/done.*
rmdir -- "$hpcdash_root" 2>/dev/null"""


def _option(name: str, value: str) -> tuple[str, bool]:
    return "--{}={}".format(name.replace("_", "-"), value), True


def _quoted(text: str) -> str:
    if "\0" in text:
        raise ValueError(f"{text!r} holds a zero byte, which no argument of a program can")
    return shlex.quote(text)
