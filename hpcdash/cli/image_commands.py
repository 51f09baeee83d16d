"""The command line of `hpcdash images`: its commands and their options. Runs nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from hpcdash.cli.options import CommonOptions, common_options

if TYPE_CHECKING:
    # Arrow comes with it, and every command would wait for it.
    from hpcdash.cli.images import Wanted


@click.group()
def images() -> None:
    """Container images on a cluster: fetch, take in from a file, list, and the login of their registry."""


def _image_options(function: Callable[..., None]) -> Callable[..., None]:
    runtimes = click.Choice(["apptainer", "podman", "enroot"])
    for option in (
        click.option("--store", "folder", metavar="DIR", default="", help="Where images are there, from the root."),
        click.option("--runtime", type=runtimes, default="apptainer", show_default=True),
    ):
        function = option(function)
    return function


def _filling_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--nocreate", is_flag=True, help="enroot: the image alone, no container of it on this node."),
        click.option("--force", is_flag=True, help="Also where it is there already."),
    ):
        function = option(function)
    return _image_options(function)


def _wanted_images(runtime: str, folder: str, *, force: bool = False, nocreate: bool = False) -> Wanted:
    from hpcdash.cli.images import Wanted
    from hpcdash.domain.request import Runtime

    return Wanted(Runtime(runtime), folder, force=force, create=not nocreate)


@images.command("pull")
@click.argument("image")
@_filling_options
@common_options
def images_pull(common: CommonOptions, image: str, **given: Any) -> None:
    """Fetch an image from its registry: hpcdash images pull nvcr.io/nvidia/pytorch:24.05-py3"""
    from hpcdash.cli.images import run_pull

    run_pull(common, _wanted_images(**given), image)


@images.command("import")
@click.argument("file")
@click.argument("reference")
@_filling_options
@common_options
def images_import(common: CommonOptions, file: str, reference: str, **given: Any) -> None:
    """Take in a file of the cluster's as NAME:TAG: hpcdash images import /work/torch.sif torch:2.3"""
    from hpcdash.cli.images import run_import

    run_import(common, _wanted_images(**given), file, reference)


@images.command("list")
@_image_options
@common_options
def images_list(common: CommonOptions, **given: Any) -> None:
    """What is there."""
    from hpcdash.cli.images import run_list

    run_list(common, _wanted_images(**given))


@images.command("login")
@click.argument("username", metavar="REGISTRY-USER", required=False)
@click.option("--password-stdin", is_flag=True, help="Read the password from stdin instead of asking for it.")
@common_options
def images_login(common: CommonOptions, username: str | None, password_stdin: bool) -> None:
    """Keep a registry's login on the cluster, mode 0600, for launches and for `images pull`."""
    from hpcdash.cli.images import run_login

    run_login(common, username=username, password_stdin=password_stdin)
