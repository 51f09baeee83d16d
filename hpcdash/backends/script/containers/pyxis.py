"""Commands that srun starts in a container, by the plugin pyxis: its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcdash.backends.script.containers.enroot import import_uri
from hpcdash.domain.request import Container
from hpcdash.errors import UsageError


def pyxis_options(
    container: Container, folders: Sequence[str], environment: Mapping[str, str], work_dir: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (options of srun, sentences for the person who submits).

    Raises UsageError for values that they cannot express. The job's environment is passed on; of a
    variable that the image sets too, pyxis takes the image's, unless it is named.
    """
    image = container.image
    if not image or image.startswith("-") or "\0" in image:
        raise UsageError(
            f"container.image: {image!r} is not an image",
            "Use NAME:TAG, or the path of a .sqsh file.",
        )
    is_file = image.startswith(("/", "./"))
    has_scheme = "://" in image and not image.startswith("docker://")
    named = image if is_file or has_scheme else import_uri(image).removeprefix("docker://")
    mounts = [_mount(bind) for bind in (*container.binds, *folders)]
    options = [f"--container-image={named}", "--container-mount-home"]
    options += [f"--container-mounts={','.join(mounts)}"] if mounts else []
    options += [f"--container-workdir={work_dir}"] if work_dir else []
    options += [f"--container-env={','.join(environment)}"] if environment else []
    notes = (
        ("force_pull: pyxis already imports the image again for each job",)
        if container.force_pull
        else ()
    )
    return tuple(options), notes


def _mount(bind: str) -> str:
    """`SOURCE:TARGET:ro`; several flags have '+' between them."""
    source, _, rest = bind.partition(":")
    target, _, flags = rest.partition(":")
    if "," in source + target or not source or "\0" in bind:
        raise UsageError(
            f"container.binds: pyxis cannot mount a path with a comma: {bind!r}",
            "Bind its parent folder.",
        )
    return ":".join([source, target or source, *([flags.replace(",", "+")] if flags else [])])
