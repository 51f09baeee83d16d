"""Builds the commands that fill and list a cluster's image store, for each container runtime."""

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

    It is skipped if the file that it `makes` or enroot's `container` exists already.
    `registry_image` is the image that it pulls from a registry, '' for none.
    """

    argv: tuple[str, ...]
    makes: str = ""
    container: str = ""
    registry_image: str = ""

    def run_argv(self, runtime: Runtime, login: str) -> tuple[str, ...]:
        """Return the command to run; one that pulls reads the registry's login from that file."""
        if not login or not self.registry_image:
            return self.argv
        prepare = [*source_login(login)]
        finish: tuple[str, ...] = ()
        if runtime is Runtime.PODMAN:
            prepare += registry_login(self.registry_image)
            finish = ('rm -f -- "$hpcdash_auth"',)
        elif runtime is Runtime.ENROOT:
            prepare += login_lines(self.registry_image)
            prepare.append("export ENROOT_CONFIG_PATH=$hpcdash_config")
            finish = ('rm -rf -- "$hpcdash_config"',)
        command = ContainerCommand(to_arguments(self.argv), prepare=tuple(prepare), finish=finish)
        return ("bash", "-c", "\n".join(command.lines()))


class Store(Struct, frozen=True):
    """Image store on a cluster.

    `program` is its runtime, `folder` an absolute path, '' for the runtime's own store.
    """

    runtime: Runtime
    program: str
    folder: str = ""

    def image_file(self, image: str) -> str:
        """Return an image's file: `FOLDER/a+b+tag.sqsh` for enroot, otherwise `FOLDER/name:tag`.

        Launches with apptainer search for it there: `docker://nvcr.io/nvidia/cuda:12` is
        `nvcr.io/nvidia/cuda:12`.
        """
        if self.runtime is Runtime.ENROOT:
            return posixpath.join(self.folder, f"{container_name(image)}.sqsh")
        scheme = next((one for one in SCHEMES if image.startswith(one)), "")
        name = posixpath.normpath(image.removeprefix(scheme).lstrip("/"))
        if name.startswith("..") or name == ".":
            raise UsageError(
                f"{image!r} is not an image name", "Use NAME:TAG, for example pytorch:24.05."
            )
        return posixpath.join(self.folder, name)

    def with_root(self, *arguments: str) -> tuple[str, ...]:
        """Return a podman command, whose storage is the folder if there is one."""
        root = ("--root", self.folder) if self.folder else ()
        return (self.program, *root, *arguments)


def pull_steps(
    store: Store, image: str, *, force: bool = False, create: bool = True
) -> tuple[Step, ...]:
    """Build the steps that fetch an image from its registry; `force` replaces an existing one.

    `create`: also create enroot's container on this node.
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
    """Build the steps that add an image file on the cluster to the store as a reference (NAME:TAG).

    apptainer: a .sif file, or an archive that docker or podman saved; podman: an archive; enroot: a
    .sqsh file, or `dockerd://NAME` and `podman://NAME`. Raises UsageError for other files.
    """
    _check(file, "file")
    _check(reference, "reference")
    archive = file if file.startswith(_ARCHIVES) else f"docker-archive:{file}"
    if store.runtime is Runtime.PODMAN:
        return (Step(("sh", "-c", _TAG, "sh", archive, reference, *store.with_root())),)
    target = store.image_file(reference)
    before = _folder_step(target)
    part = f"{target}.part"
    makes = "" if force else target
    copy = Step(("cp", "--", file, part), makes)
    if store.runtime is Runtime.ENROOT:
        if file.startswith(_ENROOT_SCHEMES):
            copy = Step((store.program, "import", "--output", part, "--", file), makes)
        elif not file.endswith(".sqsh"):
            raise UsageError(
                f"enroot cannot import {posixpath.basename(file)}: it reads squashfs files (.sqsh)",
                "Use dockerd://NAME or podman://NAME for a local Docker or Podman image.",
            )
        return (before, *_replaced(copy, part, target), *_created(store, reference, force, create))
    if file.startswith(_ARCHIVES) or _TAR.search(file):
        options = ("--force",) if force else ()
        return (before, Step((store.program, "build", *options, target, archive), makes))
    return (before, *_replaced(copy, part, target))


def list_steps(store: Store) -> tuple[Step, ...]:
    """Return the steps that list images: files of the folder, and the runtime's own list."""
    files = Step(("find", store.folder, "-type", "f", "-print"))
    if store.runtime is Runtime.PODMAN:
        return (Step(store.with_root("images")),)
    if store.runtime is Runtime.ENROOT:
        return (Step((store.program, "list")), files)
    return (files,) if store.folder else (Step((store.program, "cache", "list", "--verbose")),)


def _check(text: str, noun: str) -> None:
    if not text or text.startswith("-") or not text.isprintable():
        raise UsageError(
            f"{text!r} is not a valid {noun}",
            "Use NAME:TAG, docker://NAME:TAG, or a path on the cluster.",
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
