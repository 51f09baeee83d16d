"""The commands that fill a store of images, for each runtime."""

from __future__ import annotations

import pytest

from hpcdash.domain.request import Runtime
from hpcdash.errors import UsageError
from hpcdash.services.submit.images import Step, Store, import_steps, list_steps, pull_steps
from tests.support.records import for_each

APPTAINER = Store(Runtime.APPTAINER, "singularity", "/images")
PODMAN = Store(Runtime.PODMAN, "podman")
ENROOT = Store(Runtime.ENROOT, "enroot", "/images")


def argvs(steps: tuple[Step, ...]) -> list[str]:
    return [" ".join(step.argv) for step in steps]


def test_apptainer_s_image_is_the_file_that_launches_look_for() -> None:
    steps = pull_steps(APPTAINER, "nvcr.io/nvidia/cuda:12")
    assert argvs(steps) == [
        "mkdir -p -- /images/nvcr.io/nvidia",
        "singularity pull /images/nvcr.io/nvidia/cuda:12 docker://nvcr.io/nvidia/cuda:12",
    ]
    assert steps[1].makes == "/images/nvcr.io/nvidia/cuda:12"
    [_, forced] = pull_steps(APPTAINER, "oras://ghcr.io/a/b:1", force=True)
    assert forced.argv == (
        *(
            "singularity",
            "pull",
            "--force",
            "--disable-cache",
            "/images/ghcr.io/a/b:1",
            "oras://ghcr.io/a/b:1",
        ),
    )
    assert forced.makes == ""


def test_enroot_s_image_is_imported_whole_and_made_a_container() -> None:
    file = "/images/nvcr.io+nvidia+cuda+12.sqsh"
    steps = pull_steps(ENROOT, "nvcr.io/nvidia/cuda:12")
    assert argvs(steps) == [
        "mkdir -p -- /images",
        f"rm -f -- {file}.part",
        f"enroot import --output {file}.part -- docker://nvcr.io#nvidia/cuda:12",
        f"mv -f -- {file}.part {file}",
        f"enroot create --name nvcr.io+nvidia+cuda+12 -- {file}",
    ]
    assert steps[-1].container == "nvcr.io+nvidia+cuda+12"
    assert (
        argvs(pull_steps(ENROOT, "a:1", create=False))[-1]
        == "mv -f -- /images/a+1.sqsh.part /images/a+1.sqsh"
    )
    assert (
        argvs(pull_steps(ENROOT, "a:1", force=True))[-1]
        == "enroot create --force --name a+1 -- /images/a+1.sqsh"
    )


def test_podman_keeps_images_itself() -> None:
    assert argvs(pull_steps(PODMAN, "a:1")) == ["podman pull a:1"]
    elsewhere = Store(Runtime.PODMAN, "podman", "/images")
    assert argvs(pull_steps(elsewhere, "a:1")) == ["podman --root /images pull a:1"]
    assert argvs(list_steps(elsewhere)) == ["podman --root /images images"]


def test_a_file_is_taken_in_as_what_it_is() -> None:
    assert argvs(import_steps(APPTAINER, "/work/a.sif", "a:1"))[2:] == [
        "cp -- /work/a.sif /images/a:1.part",
        "mv -f -- /images/a:1.part /images/a:1",
    ]
    assert argvs(import_steps(APPTAINER, "/work/a.tar.gz", "a:1"))[1:] == [
        "singularity build /images/a:1 docker-archive:/work/a.tar.gz"
    ]
    assert argvs(import_steps(APPTAINER, "oci-archive:/work/a.tar", "a:1", force=True))[1:] == [
        "singularity build --force /images/a:1 oci-archive:/work/a.tar"
    ]
    assert argvs(import_steps(ENROOT, "dockerd://a", "a:1", create=False))[2] == (
        "enroot import --output /images/a+1.sqsh.part -- dockerd://a"
    )
    with pytest.raises(UsageError, match="it reads squashfs files"):
        import_steps(ENROOT, "/work/a.tar", "a:1")


@for_each("image", ["", "-o", "a\nb", "../../etc/passwd", "docker://../x"])
def test_what_is_no_image_is_refused(image: str) -> None:
    with pytest.raises(UsageError):
        pull_steps(APPTAINER, image)


def test_the_registry_s_login_is_sourced_and_in_no_word_of_the_command() -> None:
    for store in (APPTAINER, PODMAN, ENROOT):
        fetch = next(step for step in pull_steps(store, "nvcr.io/a/b:1") if step.registry_image)
        assert fetch.run_argv(store.runtime, "") == fetch.argv
        shell, option, script = fetch.run_argv(store.runtime, "/launches/login")
        assert (shell, option) == ("bash", "-c")
        assert "source /launches/login" in script
    assert all(not step.registry_image for step in list_steps(ENROOT))
