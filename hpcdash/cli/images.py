"""`hpcdash images`: fills and lists a cluster's image store with the runtime's own commands."""

from __future__ import annotations

import secrets
import shlex
import sys
from collections.abc import Callable

from msgspec import Struct

from hpcdash.assembly import chosen_site
from hpcdash.backends.script.containers.login import login_file
from hpcdash.cli.jobs import with_session
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.terminal import print_notes
from hpcdash.domain.request import Runtime
from hpcdash.domain.text import visible
from hpcdash.errors import EXIT_REFUSED, CommandError, UsageError, excerpt
from hpcdash.services.session import ClusterSession
from hpcdash.services.submit.images import (
    PROGRAMS,
    Step,
    Store,
    import_steps,
    list_steps,
    pull_steps,
)
from hpcdash.services.submit.launches import LAUNCHES_BELOW_HOME
from hpcdash.shell_files import shell_text
from hpcdash.transport.base import Prompt, PromptField, Transport
from hpcdash.transport.prompter import TerminalPrompter

_WITH_STATUS = 'end=$1; shift; "$@" 2>&1; printf "%s%s\\n" "$end" "$?"'
_LOGIN_TITLE = "Image registry login"
_IMAGES_IN_CACHE = "hpcdash/images"


class ImageRequest(Struct, frozen=True):
    """Options of all images commands: `folder` is --store, '' by default."""

    runtime: Runtime
    folder: str = ""
    force: bool = False
    create: bool = True


def run_pull(common: CommonOptions, requested: ImageRequest, image: str) -> None:
    """Fetch an image; exits with 1 if the runtime fails."""
    _run(
        common,
        requested,
        lambda store: pull_steps(store, image, force=requested.force, create=requested.create),
    )


def run_import(common: CommonOptions, requested: ImageRequest, file: str, reference: str) -> None:
    """Import a file on the cluster into the store; exits with 1 if the runtime fails."""
    _run(
        common,
        requested,
        lambda store: import_steps(
            store, file, reference, force=requested.force, create=requested.create
        ),
    )


def run_list(common: CommonOptions, requested: ImageRequest) -> None:
    """Print the images in the store."""
    _run(common, requested, list_steps, changes=False)


def _run(
    common: CommonOptions,
    requested: ImageRequest,
    build_steps: Callable[[Store], tuple[Step, ...]],
    *,
    changes: bool = True,
) -> None:
    site = chosen_site(common)
    if changes and site.is_read_only:
        raise UsageError(
            "images is disabled: hpcdash is read-only", "`hpcdash images list` still works."
        )
    if not requested.create and requested.runtime is not Runtime.ENROOT:
        raise UsageError(
            "--nocreate works only with enroot",
            "Remove it: other runtimes do not create containers.",
        )
    if requested.folder and not requested.folder.startswith("/"):
        raise UsageError(
            f"--store {requested.folder!r} is not an absolute path",
            "Use a path on the cluster: /work/images",
        )

    async def work(session: ClusterSession) -> int:
        transport = session.store.transport
        await transport.connect(force=True)
        image_root = site.launch.site.image_root
        store, home = await _read_store(transport, requested, image_root, changes=changes)
        folder = visible(store.folder)
        if store.folder != requested.folder and changes:
            print_notes(f"storing in {folder} (--store changes it)")
        elif requested.runtime is Runtime.APPTAINER and changes and store.folder != image_root:
            print_notes(f'launches find it with image_root = "{folder}" in [launch]')
        storage_root = site.launch.site.storage_root or f"{home}/{LAUNCHES_BELOW_HOME}"
        login = f"{storage_root}/login"
        if await _is_absent(transport, login):
            login = ""
        reported = ""
        has_output = False
        for step in build_steps(store):
            is_listing = step.argv[:2] == ("find", store.folder)
            if is_listing and await _is_absent(transport, store.folder):
                continue
            if existing := await _find_existing(transport, store, step):
                if existing != reported:
                    print_notes(f"{existing} already exists (--force replaces it)")
                reported = existing
                continue
            status, prints = await _run_step(session, step, requested.runtime, login)
            if status:
                return status
            has_output |= prints
        if not changes and not has_output:
            place = folder or f"the store of {store.program}"
            print(f"No images in {place}. hpcdash images pull fetches one.", file=sys.stderr)
        return 0

    if status := with_session(common, work):
        print_notes(f"{requested.runtime} exited with {status}")
        sys.exit(EXIT_REFUSED)


async def _read_store(
    transport: Transport, requested: ImageRequest, image_root: str, *, changes: bool
) -> tuple[Store, str]:
    """Return the store, and the home on the cluster.

    Raises UsageError if the runtime is missing, or no folder is configured.
    """
    programs = PROGRAMS[requested.runtime]
    program, home, cache = await _find_program(transport, programs)
    if not program and await transport.adopt_login_environment():
        program, home, cache = await _find_program(transport, programs)
    if not program:
        raise UsageError(
            f"no {' or '.join(programs)} on {transport.name}",
            'Use another with --runtime, or set path = "/…/bin" in the cluster\'s table.',
        )
    folder = requested.folder
    if requested.runtime is Runtime.APPTAINER:
        folder = folder or image_root
        if changes and not folder:
            raise UsageError(
                "no image folder is set", "Use --store DIR, or set image_root in [launch]."
            )
    elif requested.runtime is Runtime.ENROOT:
        folder = folder or f"{cache}/{_IMAGES_IN_CACHE}"
    return Store(requested.runtime, program, folder), home


async def _find_program(transport: Transport, programs: tuple[str, ...]) -> tuple[str, str, str]:
    """Return the path of the first program found ('' for none), the home and the cache folder."""
    argv = ("sh", "-c", shell_text("cli/find_program.sh"), "sh", *programs)
    answer = await transport.run(argv)
    lines = answer.stdout.decode("utf-8", "surrogateescape").split("\n")
    if answer.status or len(lines) < 3:
        raise CommandError(
            f"{transport.name} did not respond like a shell: {excerpt(answer.stderr)}"
        )
    return lines[0], lines[1], lines[2]


async def _find_existing(transport: Transport, store: Store, step: Step) -> str:
    """Return the step's file or container if it exists already, else ''."""
    if step.makes and not await _is_absent(transport, step.makes):
        return step.makes
    if step.container:
        listed = await transport.run((store.program, "list"))
        if step.container in listed.stdout.decode("utf-8", "replace").split("\n"):
            return f"enroot's container {step.container}"
    return ""


async def _is_absent(transport: Transport, path: str) -> bool:
    return (await transport.run(("test", "-e", path))).status != 0


async def _run_step(
    session: ClusterSession, step: Step, runtime: Runtime, login: str
) -> tuple[int, bool]:
    """Print the command, run it, and print its output as it comes.

    Returns the exit status, and whether there was output.
    """
    with_login = ", with the registry's login" if login and step.registry_image else ""
    print(
        f"on {visible(session.name)}{with_login}: {visible(shlex.join(step.argv))}",
        file=sys.stderr,
        flush=True,
    )
    end = f"hpcdash-{secrets.token_hex(8)}"
    argv = ("sh", "-c", _WITH_STATUS, "sh", end, *step.run_argv(runtime, login))
    rest = b""
    has_output = False
    async with session.store.transport.stream(argv) as stream:
        async for chunk in stream:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                output, is_last, status = line.partition(end.encode())
                if output or not is_last:
                    has_output = True
                    # Progress overwrites the line after \r.
                    text = output.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
                    print(visible(text), flush=True)
                if is_last:
                    return int(status), has_output
    raise CommandError(
        f"{step.argv[0]} ended without an exit status", "Run it again: existing files are kept."
    )


def run_login(common: CommonOptions, *, username: str | None, password_stdin: bool) -> None:
    """Write the login of an image registry to the file that launches read, mode 0600.

    It is never printed or logged.
    """
    site = chosen_site(common)
    if site.is_read_only:
        raise UsageError("images login is disabled: hpcdash is read-only")

    async def work(session: ClusterSession) -> str:
        transport = session.store.transport
        await transport.connect(force=True)
        storage_root = site.launch.site.storage_root
        file = f"{storage_root or f'~/{LAUNCHES_BELOW_HOME}'}/login"
        print(
            f"on {visible(session.name)}: writes {visible(file)}, mode 0600",
            file=sys.stderr,
            flush=True,
        )
        user, password = await _prompt_login(session.name, username, password_stdin=password_stdin)
        script = shell_text("cli/write_login.sh")
        argv = ("sh", "-c", script, "sh", storage_root, LAUNCHES_BELOW_HOME)
        answer = await transport.run(argv, stdin=login_file(user, password).encode())
        if answer.status:
            raise CommandError(
                f"the login was not written: {excerpt(answer.stderr)}",
                "Check that you own storage_root on the cluster.",
            )
        return answer.stdout.decode("utf-8", "replace").strip()

    print(visible(with_session(common, work)))


async def _prompt_login(
    where: str, username: str | None, *, password_stdin: bool
) -> tuple[str, str]:
    """Read user and password from the terminal without echo, or the password from stdin."""
    if password_stdin:
        if not username:
            raise UsageError(
                "--password-stdin needs a user name", "hpcdash images login NAME --password-stdin"
            )
        user = username
        password = sys.stdin.readline().rstrip("\r\n")
    else:
        fields = [PromptField("Password or token:")]
        if not username:
            fields.insert(0, PromptField("User:", secret=False))
        prompt = Prompt(f"hpcdash for {where}", _LOGIN_TITLE, "", tuple(fields))
        answers = await TerminalPrompter().answer(prompt)
        if answers is None:
            raise UsageError(
                "there is no terminal to prompt on",
                "--password-stdin reads the password from stdin.",
            )
        user = username or answers[0]
        password = answers[-1]
    if not user or not password or "\0" in user + password:
        raise UsageError("a login needs a user name and a password", "Nothing was written.")
    return user, password
