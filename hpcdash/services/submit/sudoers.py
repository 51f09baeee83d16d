"""Submission of jobs as other accounts: sudo rules, and root's program for their launches."""

from __future__ import annotations

import re

from hpcdash.config.settings import PLAIN_PATH
from hpcdash.domain.request import ACCOUNT_NAME
from hpcdash.errors import UsageError
from hpcdash.private_files import WEAK_SPOT

# Files that the launch program takes: no path, no option, nothing hidden, no letter that a shell
# acts on.
PLAIN_NAME = re.compile(r"[A-Za-z0-9_@+][A-Za-z0-9._@+-]{0,199}")
# sudo takes these for its aliases, of which ALL is everybody.
_ALIAS = re.compile(r"[A-Z][A-Z0-9_]*")
_GROUP = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,63}")

# How `remove` ends where there is no such launch.
NOTHING_THERE = 3


# Of the names that scripts give their logs: what a job writes to predictions.out is its result.
_LOG = "^(job([.][0-9]+)?|[0-9]+(_[0-9]+)?)([.]rank-[0-9]+)?[.](out|err)$"


def unstaged_file(*passed_over: str) -> str:
    """Shell that prints a file of a launch's folder that was neither staged nor is a log, nor of
    these patterns, or that was staged and is not as it was.
    """
    others = "".join(f'! -path "{pattern}" ' for pattern in passed_over)
    # What was staged is named twice or more, the rest once. A line break in a name would make two
    # of it.
    return (
        '{ find . -name "*[[:cntrl:]]*" | sed "s/.*/a name with a control character/" | head -n 1; '
        "{ cut -c 67- SHA256SUMS; cut -c 67- SHA256SUMS; find . ! -type d "
        f'! -path "./SHA256SUMS" {others}! -path "*/__pycache__/*" | cut -c 3-; }} | sort | uniq '
        f"-u | "
        f"grep -vE '{_LOG}' | head -n 1; sha256sum --quiet -c SHA256SUMS 2>&1 | head -n 1; }} | "
        f"head -n 1"
    )


UNSTAGED_FILE = unstaged_file()
# $1 the launch program, $2 the storage root: prints why they are not to be trusted.
TRUST_SCRIPT = f"""\
LC_ALL=C; export LC_ALL
{WEAK_SPOT}
why=$(weak_spot "$1" root)
[ "$why" ] || {{ [ -f "$1" ] && [ -x "$1" ]; }} || why="$1 is not a program"
[ "$why" ] || why=$(weak_spot "$2" root sticky)
[ "$why" ] || [ -d "$2" ] || why="$2 is not a folder"
printf '%s\\n' "$why"
"""
_PROGRAM = r"""#!/bin/sh
# hpcdash-launch: keeps launches in @ROOT@, as the account that sudo runs it as.
# `hpcdash sudoers --program` printed it. It belongs to root, and nobody else may write to it.
#
#   hpcdash-launch make LAUNCH                      make a folder of mode 0700, and print its path
#   hpcdash-launch write LAUNCH FILE [SHA256]       write stdin to a file; one that begins with #! is executable
#   hpcdash-launch read LAUNCH FILE [FIRST COUNT]   print a file; or DEVICE:INODE SIZE MODIFIED FIRST, then COUNT bytes
#                                                   from the offset FIRST on (`end`: the last ones)
#   hpcdash-launch remove LAUNCH [SHA256 [staged]]  remove a folder: with SHA256 only if its SHA256SUMS has that digest,
#                                                   with `staged` only if nothing but logs was added to it
#
# Status: 0 done, 1 refused or failed, 2 wrong arguments, 3 not there, 4 more than was staged, 5 not what was staged.
# LAUNCH and FILE are names of letters, digits and ._@+- alone, never paths. The folder is one that others may write to:
# whatever is there already may be theirs.

set -fu
PATH=/usr/bin:/bin
LC_ALL=C
export PATH LC_ALL
unset IFS CDPATH
umask 077
root=@ROOT@

fail() {
  printf 'hpcdash-launch: %s\n' "$1" >&2
  exit "${2:-1}"
}

plain() {
  case $1 in
    '' | .* | -* | *[!A-Za-z0-9._@+-]*)
      fail 'a name has letters, digits and ._@+- alone, and begins with neither . nor -' 2
      ;;
  esac
  [ "${#1}" -le 200 ] || fail 'a name has at most 200 letters' 2
}

number() {
  case $1 in
    0 | [1-9]*) ;;
    *) fail 'FIRST and COUNT are whole numbers' 2 ;;
  esac
  case $1 in *[!0-9]*) fail 'FIRST and COUNT are whole numbers' 2 ;; esac
  [ "${#1}" -le 15 ] || fail 'FIRST and COUNT are at most 15 digits' 2
}

@WEAK_SPOT@
# Into the launch, where it is a folder of this account's own: nobody else can put another in its place, as the root is
# sticky.
enter() {
  [ -e "./$launch" ] || [ -L "./$launch" ] || fail "there is no launch $launch" 3
  { [ ! -L "./$launch" ] && [ -d "./$launch" ]; } || fail "$launch is not a launch: it is not a folder" 5
  { cd -P -- "./$launch" 2>/dev/null && [ "$(pwd -P)" = "$root/$launch" ]; } || fail "$launch cannot be entered" 5
  found=$(stat -c '%u %a' .) || fail "$launch cannot be looked at" 5
  [ "${found% *}" = "$user" ] || fail "$launch is another account's" 5
  mode=0${found#* }
  [ $((mode & 022)) -eq 0 ] || fail "others may write to $launch" 5
}

# A file of the launch's that is no link, or with `new` none at all.
regular() {
  if [ -L "./$file" ] || { [ -e "./$file" ] && [ ! -f "./$file" ]; }; then fail "$file is not a regular file" 5; fi
  [ -e "./$file" ] || [ "${1-}" = new ] || fail "there is no file $file" 3
}

usage() {
  what='make LAUNCH | write LAUNCH FILE [SHA256] | read LAUNCH FILE [FIRST COUNT] | remove LAUNCH [SHA256 [staged]]'
  fail "usage: $what" 2
}

case ${1-}:$# in
  make:2 | write:[34] | read:[35] | remove:[234]) ;;
  *) usage ;;
esac
verb=$1 launch=$2 file=${3-}
plain "$launch"
case $verb in write | read) plain "$file" ;; esac

user=$(id -u) || fail 'who runs this is not known'
least=1000
if [ -r /etc/login.defs ]; then
  while read -r key value _; do
    case $key:$value in UID_MIN:*[!0-9]* | UID_MIN:) ;; UID_MIN:*) least=$value ;; esac
  done </etc/login.defs
fi
{ [ "$user" -ge "$least" ] && [ "$user" -ne 0 ]; } || \
  fail "uid $user is a system account, below UID_MIN ($least) of /etc/login.defs: it launches nothing"

why=$(weak_spot "$root" root sticky)
[ -z "$why" ] || fail "$why"
{ cd -P -- "$root" 2>/dev/null && [ "$(pwd -P)" = "$root" ]; } || fail "$root cannot be entered"

case $verb in
  make)
    mkdir -m 700 -- "./$launch" || exit 1
    enter
    printf '%s\n' "$root/$launch"
    ;;

  write)
    enter
    regular new
    # No FILE begins with a dot.
    new=./.$file.$$
    rm -f -- "$new"
    set -C
    if cat >"$new"; then
      [ -z "${4-}" ] || [ "$(sha256sum <"$new")" = "$4  -" ] || { rm -f -- "$new"; fail "$file did not arrive whole"; }
      case $(head -c 2 <"$new" | tr -d '\000') in '#!') chmod 700 "$new" ;; esac
      mv -f -- "$new" "./$file" && exit 0
    fi
    rm -f -- "$new"
    fail "$file cannot be written"
    ;;

  read)
    enter
    regular
    if [ $# -eq 3 ]; then exec cat -- "./$file"; fi
    first=$4 count=$5
    [ "$first" = end ] || number "$first"
    number "$count"
    exec 3<"./$file" || exit 1
    # What is looked at is what is read, whatever is renamed meanwhile.
    found=$(stat -L -c '%d:%i %s %Y' /proc/self/fd/3) || exit 1
    if [ "$first" = end ]; then
      size=${found#* }
      first=$((${size% *} - count))
      [ "$first" -ge 0 ] || first=0
    fi
    printf '%s %s\n' "$found" "$first"
    [ "$count" -eq 0 ] || tail -c "+$((first + 1))" <&3 | head -c "$count"
    ;;

  remove)
    (enter) || exit
    # An empty one was never filled.
    rmdir -- "./$launch" 2>/dev/null && exit 0
    if [ "$file" ]; then
      sums=$({ cd -P -- "./$launch" && sha256sum <SHA256SUMS; } 2>/dev/null)
      [ "$sums" = "$file  -" ] || fail "$launch does not hold what was staged" 5
    fi
    case ${4-} in
      '') ;;
      staged)
        more=$(cd -P -- "./$launch" && @UNSTAGED_FILE@)
        [ -z "$more" ] || fail "it holds more than was staged: $more" 4
        ;;
      *) usage ;;
    esac
    rm -rf -- "./$launch"
    ;;
esac
"""


def sudoers_text(
    account: str,
    group: str,
    *,
    bin_folder: str,
    commands: tuple[str, ...],
    storage_root: str,
    launch_program: str,
    env_file: str = "",
) -> str:
    """A drop-in for /etc/sudoers.d: what `account` may run, without a password, as the members of
    `group`.

    The scheduler's `commands`, and the launch program; as nobody of uid 0, whatever the name, and
    in an environment of sudo's, with what `env_file` sets. Raises UsageError for a name or path
    that sudo would read as something else.
    """
    if not ACCOUNT_NAME.fullmatch(account) or _ALIAS.fullmatch(account):
        raise UsageError(
            f"{account!r} is not a valid account name for sudo rules",
            "Write a login name: --account launcher",
        )
    if account == "root":
        raise UsageError(
            "root needs no rules", "Give the account that hpcdash runs as: --account launcher"
        )
    if not _GROUP.fullmatch(group):
        raise UsageError(
            f"{group!r} is not a valid group name for sudo rules",
            "Write a group name: --group hpcusers",
        )
    _check_path("--bin", "the commands' folder", bin_folder)
    _check_path("--storage-root", "the storage root", storage_root)
    _check_path("launch_program", "the launch program", launch_program)
    if env_file:
        _check_path("--env-file", "a file of variables", env_file)
    setup = "".join(f"#   {command}\n" for command in root_commands(storage_root, launch_program))
    # No alias: its name would be the same in the rules of a second account.
    programs = ", \\\n    ".join((*(f"{bin_folder}/{name}" for name in commands), launch_program))
    # A process of a member's could type into the terminal that it was started from.
    defaults = f"Defaults:{account} use_pty\n"
    if env_file:
        defaults += (
            f"# sudo does not check whose this file is: it has to be root's, as /etc/sudoers is.\n"
            f"Defaults:{account} env_file={env_file}\n"
        )
    return (
        f"# {account} submits jobs as the members of {group}.\n"
        f"#\n"
        f"# Root first sets up, on every machine that {account} submits from:\n"
        f"{setup}"
        f"# Every folder above these two has to be root's, with nobody else who may write there "
        f"(namei -l PATH).\n"
        f"# Then root checks and installs these rules, saved as RULES:\n"
        f"#   visudo -c -f RULES && install -o root -m 0440 RULES "
        f"/etc/sudoers.d/{account.replace('.', '_')}\n"
        f"#\n"
        f"# What the rules give away: {account}, and whoever breaks into it, can run any program "
        f"as any member of\n"
        f"# {group}. Submitting a job means that, and srun and salloc run a program at once, "
        f"salloc on this very\n"
        f"# machine. So nobody may be in {group} who can do more than an ordinary user: no system "
        f"account (munge\n"
        f"# and slurm can run jobs as anyone), nobody with sudo rules, nobody in a group such as "
        f"docker or disk.\n"
        f"# The rules themselves exclude accounts of uid 0 alone. Who is in {group}:\n"
        f"#   getent group {group}    and those whose primary group it is: getent passwd\n"
        f"{defaults}"
        f"{account} ALL = (%{group}, !root, !#0) NOPASSWD: \\\n    {programs}\n"
    )


def program_text(storage_root: str) -> str:
    """The launch program, in POSIX sh, with the storage root fixed in it.

    Raises UsageError for a path that is none.
    """
    _check_path("--storage-root", "the storage root", storage_root)
    filled = _PROGRAM.replace("@WEAK_SPOT@", WEAK_SPOT).replace("@UNSTAGED_FILE@", UNSTAGED_FILE)
    return filled.replace("@ROOT@", storage_root)


def root_commands(storage_root: str, launch_program: str) -> tuple[str, ...]:
    """Return root's commands for run_as: install the launch program, make the storage root."""
    program = f"hpcdash sudoers --program --storage-root {storage_root}"
    return (
        f"{program} | install -o root -m 0755 -D /dev/stdin {launch_program}",
        f"install -d -m 1777 {storage_root}",
    )


def program_argv(account: str, launch_program: str, verb: str, *arguments: str) -> tuple[str, ...]:
    """The launch program, run as an account, as the sudo rules have it."""
    return ("sudo", "-n", "-u", account, launch_program, verb, *arguments)


def _check_path(option: str, what: str, path: str) -> None:
    if not PLAIN_PATH.fullmatch(path):
        raise UsageError(
            f"{path!r} cannot be {what} here",
            f"{option}: write an absolute path of letters, digits and ._@+- only.",
        )
