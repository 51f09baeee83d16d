"""The commands that fill and list a cluster's store of images, one way for each runtime.

Runs nothing.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from msgspec import Struct

from hpcdash.backends.script.containers.apptainer import SCHEMES
from hpcdash.backends.script.containers.enroot import container_name, import_uri, login_lines
from hpcdash.backends.script.containers.login import source_login
from hpcdash.backends.script.containers.podman import registry_login
from hpcdash.backends.script.containers.words import ContainerCommand, to_arguments
from hpcdash.domain.request import Runtime
from hpcdash.errors import UsageError

# Singularity has the same arguments.
PROGRAMS = {
    Runtime.APPTAINER: ("apptainer", "singularity"),
    Runtime.PODMAN: ("podman",),
    Runtime.ENROOT: ("enroot",),
}
_ARCHIVES = ("docker-archive:", "oci-archive:")
_TAR = re.compile(r"\.tar(\.(gz|xz|zst|bz2))?$|\.tgz$")
_ENROOT_SCHEMES = ("dockerd://", "podman://")
_TAG = '''source=$1 reference=$2; shift 2
image=$("$@" pull --quiet "$source") && "$@" tag "$image" "$reference" && printf '%s\\n' "$image"'''


class Step(Struct, frozen=True):
    """One command.

    `makes` is a file that it makes, `container` one of enroot's: where that is there, it is left
    out.

    `registry_image` is what it asks a registry for, '' where it asks none.
    """

    argv: tuple[str, ...]
    makes: str = ""
    container: str = ""
    registry_image: str = ""

    def run_argv(self, runtime: Runtime, login: str) -> tuple[str, ...]:
        """The command as it is run: with the registry's login, a file of mode 0600, where it asks a
        registry.
        """
        if not login or not self.registry_image:
            return self.argv
        lines: tuple[str, ...] = ()
        finish: tuple[str, ...] = ()
        if runtime is Runtime.PODMAN:
            lines = registry_login(self.registry_image)
            finish = ('rm -f -- "$hpcdash_auth"',)
        elif runtime is Runtime.ENROOT:
            lines = (*login_lines(self.registry_image), "export ENROOT_CONFIG_PATH=$hpcdash_config")
            finish = ('rm -rf -- "$hpcdash_config"',)
        made = ContainerCommand(
            to_arguments(self.argv), prepare=(*source_login(login), *lines), finish=finish
        )
        return ("bash", "-c", "\n".join(made.lines()))


class Store(Struct, frozen=True):
    """Place of images on a cluster.

    `program` is its runtime, `folder` an absolute path, '' for the runtime's own store.
    """

    runtime: Runtime
    program: str
    folder: str = ""

    def image_file(self, image: str) -> str:
        """The file of an image: `FOLDER/name:tag` for apptainer, where launches look for it,
        `FOLDER/a+b+tag.sqsh`.
        """
        if self.runtime is Runtime.ENROOT:
            return posixpath.join(self.folder, f"{container_name(image)}.sqsh")
        return posixpath.join(self.folder, _file_name(image))

    def with_root(self, *given: str) -> tuple[str, ...]:
        """Words of a command of podman's; its own storage is elsewhere where there is a folder."""
        return (self.program, *(("--root", self.folder) if self.folder else ()), *given)


def pull_steps(
    store: Store, image: str, *, force: bool = False, create: bool = True
) -> tuple[Step, ...]:
    """Fetch an image from its registry; `force` also where it is there.

    `create`: enroot's container of this node.
    """
    _check(image, "image")
    if store.runtime is Runtime.PODMAN:
        return (Step(store.with_root("pull", image), registry_image=image),)
    file = store.image_file(image)
    before = _folder_step(file)
    makes = "" if force else file
    if store.runtime is Runtime.ENROOT:
        part = f"{file}.part"
        fetch = (store.program, "import", "--output", part, "--", import_uri(image))
        fetched = _replaced(Step(fetch, makes, registry_image=image), part, file)
        return (before, *fetched, *_created(store, image, force, create))
    source = image if image.startswith(SCHEMES) else f"docker://{image}"
    options = ("--force", "--disable-cache") if force else ()
    return (
        before,
        Step((store.program, "pull", *options, file, source), makes, registry_image=image),
    )


def import_steps(
    store: Store, file: str, reference: str, *, force: bool = False, create: bool = True
) -> tuple[Step, ...]:
    """Take an image's file on the cluster into the store under a reference (NAME:TAG).

    apptainer: a .sif file, or an archive that docker or podman saved; podman: an archive; enroot: a
    .sqsh file, or `dockerd://NAME` and `podman://NAME`. Raises UsageError for what the runtime
    cannot take.
    """
    _check(file, "file")
    _check(reference, "reference")
    if store.runtime is Runtime.PODMAN:
        source = file if file.startswith(_ARCHIVES) else f"docker-archive:{file}"
        return (Step(("sh", "-c", _TAG, "sh", source, reference, *store.with_root())),)
    there = store.image_file(reference)
    before = _folder_step(there)
    part = f"{there}.part"
    makes = "" if force else there
    copy = Step(("cp", "--", file, part), makes)
    if store.runtime is Runtime.ENROOT:
        if file.startswith(_ENROOT_SCHEMES):
            copy = Step((store.program, "import", "--output", part, "--", file), makes)
        elif not file.endswith(".sqsh"):
            raise UsageError(
                f"enroot cannot import {posixpath.basename(file)}: it reads squashfs files (.sqsh)",
                "Write dockerd://NAME or podman://NAME for a local Docker or Podman image.",
            )
        return (before, *_replaced(copy, part, there), *_created(store, reference, force, create))
    if file.startswith(_ARCHIVES) or _TAR.search(file):
        source = file if file.startswith(_ARCHIVES) else f"docker-archive:{file}"
        options = ("--force",) if force else ()
        return (before, Step((store.program, "build", *options, there, source), makes))
    return (before, *_replaced(copy, part, there))


def list_steps(store: Store) -> tuple[Step, ...]:
    """Return the steps that list images: files of the folder, and the runtime's own list."""
    files = Step(("find", store.folder, "-type", "f", "-print"))
    if store.runtime is Runtime.PODMAN:
        return (Step(store.with_root("images")),)
    if store.runtime is Runtime.ENROOT:
        return (Step((store.program, "list")), files)
    return (files,) if store.folder else (Step((store.program, "cache", "list", "--verbose")),)


def _file_name(image: str) -> str:
    """`docker://nvcr.io/nvidia/cuda:12` → `nvcr.io/nvidia/cuda:12`."""
    scheme = next((one for one in SCHEMES if image.startswith(one)), "")
    name = posixpath.normpath(image.removeprefix(scheme).lstrip("/"))
    if name.startswith("..") or name == ".":
        raise UsageError(f"{image!r} is not an image name", "Write NAME:TAG, as in pytorch:24.05.")
    return name


def _check(text: str, what: str) -> None:
    if not text or text.startswith("-") or not text.isprintable():
        raise UsageError(
            f"{text!r} is no {what}", "Write NAME:TAG, docker://NAME:TAG, or a path there."
        )


def _folder_step(file: str) -> Step:
    return Step(("mkdir", "-p", "--", posixpath.dirname(file)))


def _replaced(step: Step, part: str, file: str) -> Sequence[Step]:
    """Wrap a step that makes `part` so that the whole `part` then replaces `file`."""
    return (
        Step(("rm", "-f", "--", part), step.makes),
        step,
        Step(("mv", "-f", "--", part, file), step.makes),
    )


def _created(store: Store, image: str, force: bool, create: bool) -> tuple[Step, ...]:
    if not create:
        return ()
    name = container_name(image)
    options = ("--force",) if force else ()
    argv = (store.program, "create", *options, "--name", name, "--", store.image_file(image))
    return (Step(argv, container="" if force else name),)
