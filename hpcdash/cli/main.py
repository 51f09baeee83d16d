"""The `hpcdash` command: reads the command line, runs app or one-shot command, prints errors."""

from __future__ import annotations

import codecs
import contextlib
import errno
import gc
import io
import os
import signal
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcdash import __version__
from hpcdash.cli.debug_log import log_traceback
from hpcdash.cli.help import Commands
from hpcdash.cli.options import CommonOptions, check_arguments, common_options
from hpcdash.domain.text import visible, visible_text
from hpcdash.errors import EXIT_REFUSED, EXIT_USAGE, Declined, HpcdashError
from hpcdash.services.state import database

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hpcdash.config.settings import Settings

# Commit and date of the build, in a package.
_BUILD_FILE = Path(__file__).parents[1] / "build.txt"
_INTERRUPTED = 130
# Errors of a write on a full disk, over a quota or a file size limit; they name no file.
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class _PipeClosed(Exception):
    """Raised when the reader of stdout has closed it."""


class _Interrupted(Exception):
    """Raised when ctrl+c was pressed."""


def _complete(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    _import_numpy()
    from hpcdash.cli.completion import complete

    return complete(context, parameter, incomplete)


class _Commands(Commands):
    """Commands other than the dashboard, loaded when a command is named, or for help.

    A closed pipe and ctrl+c are hidden from click, which would exit with 1 and print a line.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        self._load()
        return super().list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        self._load()
        return super().get_command(ctx, cmd_name)

    @cache  # noqa: B019  # there is one such group, for as long as the process
    def _load(self) -> None:
        from hpcdash.cli.commands import COMMANDS

        for command in COMMANDS:
            self.add_command(command)
        check_arguments(self, _complete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _PipeClosed from error
        except KeyboardInterrupt as error:
            raise _Interrupted from error


def version_text() -> str:
    """Format `hpcdash 0.1.0 (build 0a1b2c3d of 2026-11-26), Python 3.11.2`."""
    try:
        commit, date = _BUILD_FILE.read_text("ascii").split()
        build = f"build {commit} of {date}"
    except (OSError, ValueError):
        build = "not a released build"
    return f"hpcdash {__version__} ({build}), Python {'.'.join(map(str, sys.version_info[:3]))}"


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(version_text(), "--version", message="%(version)s")
@common_options
@click.pass_context
def cli(context: click.Context, common: CommonOptions) -> None:
    """One terminal for all your clusters.

    Without a command, hpcdash opens the dashboard.
    """
    context.obj = common
    if context.invoked_subcommand in (None, "replay", "demo"):
        # Garbage collections take a tenth of the start; the app enables them.
        gc.disable()
    _import_numpy()
    if context.invoked_subcommand is None:
        from hpcdash.cli.dashboard import run_dashboard

        run_dashboard(common, _first_start)


def _first_start(common: CommonOptions, settings: Settings) -> None:
    from hpcdash.cli.first_start import run_first_start

    run_first_start(common, settings)


@cli.command()
@click.argument("case_dir", type=click.Path(path_type=Path), required=False, metavar="[CASE_DIR]")
@click.option("--view", default="jobs", hidden=True)
@common_options
def replay(common: CommonOptions, case_dir: Path | None, view: str) -> None:
    """Open the dashboard on a recording, or list recordings."""
    from hpcdash.cli.dashboard import list_cases, run_replay

    if case_dir is None:
        list_cases()
    else:
        run_replay(common, case_dir, view)


@cli.command()
@common_options
def demo(common: CommonOptions) -> None:
    """Open the dashboard on a temporary queue with sample jobs.

    The jobs run on this machine. Everything is removed on exit.
    """
    from hpcdash.cli.demo import run_demo

    run_demo(common)


check_arguments(cli, _complete)


def _import_numpy() -> None:
    """Load numpy, which pyarrow needs, without a thread for each core of the login node.

    The threads multiply matrices, which hpcdash never does; each spins for a while when it starts.
    """
    if "OPENBLAS_NUM_THREADS" in os.environ:
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        import_module("numpy")
    finally:
        # A child process may multiply matrices.
        del os.environ["OPENBLAS_NUM_THREADS"]


def _is_source_tree() -> bool:
    """Return whether hpcdash runs from a checkout, where a developer reads the traceback."""
    return (Path(__file__).parents[2] / "pyproject.toml").is_file()


def _has_current_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _print_error(text: str) -> None:
    for number, line in enumerate(text.splitlines()):
        print(("hpcdash: " if number == 0 else "  ") + visible(line), file=sys.stderr)


def _discard_output() -> None:
    """Discard unwritten output, or Python's flush of stdout at exit would fail again."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace_unwritable_letters() -> None:
    """Write ? for a character that the encoding of stdout lacks. stderr escapes it by default."""
    stdout = sys.stdout
    # Python's surrogateescape writes the bytes of an odd file name, but no letter beyond the
    # encoding.
    is_complete = (
        stdout.errors == "surrogateescape" and codecs.lookup(stdout.encoding).name == "utf-8"
    )
    if isinstance(stdout, io.TextIOWrapper) and not is_complete:
        stdout.reconfigure(errors="replace")


def main() -> None:
    """Run the program, and end the process with the documented exit status."""
    # A shell's `>&-` closes a stream: its output is discarded, or it would go to the next file
    # that is opened.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    _replace_unwritable_letters()
    debug = "--debug" in sys.argv
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    database.listen(_print_error)
    try:
        cli.main(standalone_mode=False, complete_var="_HPCDASH_COMPLETE")
        sys.stdout.flush()
        status = 0
    except HpcdashError as error:
        if debug:
            log_traceback(error)
        _print_error(str(error))
        status = error.exit_status
    except click.exceptions.Exit as error:
        status = error.exit_code
    except Declined:
        print("nothing was done", file=sys.stderr)
        status = EXIT_REFUSED
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        # It repeats arguments, and a glob may have added the name of any file.
        sys.stderr.write(visible_text(shown.getvalue()))
        status = EXIT_USAGE
    except (click.Abort, _Interrupted, KeyboardInterrupt):
        _print_error("interrupted")
        status = _INTERRUPTED
    except (BrokenPipeError, _PipeClosed):
        # The reader has enough.
        _discard_output()
        status = 0
    except Exception as error:
        path = log_traceback(error) if debug else None
        if isinstance(error, OSError) and error.errno in _NOT_WRITTEN and error.filename is None:
            _print_error(
                f"could not write the output: {error.strerror}\nCheck the free space on its disk."
            )
            _discard_output()
        elif isinstance(error, FileNotFoundError) and not _has_current_folder():
            _print_error("the current folder no longer exists\nChange to another folder: cd")
        else:
            _print_error(f"internal error of hpcdash: {type(error).__name__}: {error}")
            if _is_source_tree():
                import traceback

                sys.stderr.write(visible_text("".join(traceback.format_exception(error))))
            else:
                _print_error(
                    f"the traceback is in {path}"
                    if path
                    else "run it again with --debug to write the traceback to its log file"
                )
        status = EXIT_REFUSED
    finally:
        # A second press means no interest in Python's own cleanup.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(status)


if __name__ == "__main__":
    main()
