"""Names of the files in a launch's folder."""

from __future__ import annotations

SCRIPT_NAME = "batch.sh"
REQUEST_NAME = "request.toml"
LIBRARY_NAME = "hpcdash-job.zip"
STAGED_FOLDER = "files"
# The archive of a request's `files`, and the folder in it.
CODE_ARCHIVE = "code.tar.gz"
CODE_FOLDER = "code"
# What is installed where a launch starts, written by its script.
PACKAGES_NAME = "packages.txt"
# The variables with secrets.
SECRETS_NAME = "secrets.sh"
# The commit of the code, and its changes since.
PROVENANCE_NAME = "git.txt"
# A command in a container writes this to its stderr before anything of its own.
CONTAINER_UP = "hpcdash: the container is up on "


def staged_name(name: str, run_as: str) -> str:
    """Path of a person's own file in a launch's folder: below files/, where root's program cannot
    write.
    """
    return name if run_as else f"{STAGED_FOLDER}/{name}"
