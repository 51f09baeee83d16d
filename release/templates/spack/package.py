# `make release` fills in version and checksum.
from spack.package import *  # noqa: F403


class PyHpcdash(PythonPackage):
    """@SUMMARY@."""

    homepage = "https://pypi.org/project/hpcdash/"
    pypi = "hpcdash/hpcdash-@VERSION@.tar.gz"

    license("MIT")

    version("@VERSION@", sha256="@SHA256@")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-hatchling@1.24:", type="build")
    depends_on("py-rich@13.9:", type=("build", "run"))
    # @SPACK_DEPENDENCIES@
