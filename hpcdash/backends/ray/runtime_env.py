"""The runtime environment of a request: pip, conda and py_modules, by Ray's own rules.

Source: ray/_private/runtime_env/validation.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

_PIP_KEYS = ("packages", "pip_check", "pip_version", "pip_install_options")
_MODULE_EXAMPLE = '["https://example.org/lib.whl"]'
_MODULE_PROTOCOLS = ("https", "http", "s3", "gs", "azure", "abfss", "file", "gcs")
# Source: ray/_common/runtime_env_package.py; before 2.60 Ray takes the first two alone.
_MODULE_ENDINGS = (".zip", ".whl", ".tar.gz", ".tgz", ".tar.xz")


def _check_pip(value: object) -> None:
    table = value if isinstance(value, dict) else {"packages": value}
    if unknown := [name for name in table if name not in _PIP_KEYS]:
        raise ValueError(f"pip.{unknown[0]}: expected {', '.join(_PIP_KEYS)}")
    if "packages" not in table:
        raise ValueError("pip.packages: missing")
    for name in ("packages", "pip_install_options"):
        if name in table and not _are_texts(table[name]):
            raise ValueError(f'pip.{name}: expected an array of strings, as in ["torch==2.4"]')
    if not isinstance(table.get("pip_check", False), bool):
        raise ValueError("pip.pip_check: expected true or false")
    if not isinstance(table.get("pip_version", ""), str):
        raise ValueError('pip.pip_version: expected a version, as in "==24.0"')


def _check_conda(value: object) -> None:
    if isinstance(value, str):
        if value.endswith((".yml", ".yaml")):
            raise ValueError("conda: files are not supported: write the contents as a table")
        if value:
            return
    elif isinstance(value, dict):
        if not _is_json(value):
            raise ValueError("conda: expected only strings, numbers, arrays and tables")
        return
    raise ValueError(
        "conda: expected the name or folder of an environment, or a table that describes it"
    )


def _check_modules(value: object) -> None:
    if not _are_texts(value):
        raise ValueError(f"py_modules: expected an array of URIs, as in {_MODULE_EXAMPLE}")
    for uri in value:
        protocol, separator, path = uri.partition("://")
        if not separator:
            raise ValueError(f"py_modules: {uri} is not a URI: use `files` for local folders")
        if protocol not in _MODULE_PROTOCOLS:
            raise ValueError(f"py_modules: {protocol} is not one of {', '.join(_MODULE_PROTOCOLS)}")
        if not path.partition("?")[0].endswith(_MODULE_ENDINGS):
            raise ValueError(f"py_modules: {uri} ends in none of {', '.join(_MODULE_ENDINGS)}")


def _are_texts(value: object) -> TypeGuard[list[str]]:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(one, str) and one.strip() for one in value)


def _is_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_json, value.values()))
    if isinstance(value, list):
        return all(map(_is_json, value))
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


_CHECKS = {"pip": _check_pip, "conda": _check_conda, "py_modules": _check_modules}
_ELSEWHERE = {
    "env_vars": "use [environment], which the dashboard does not show",
    "working_dir": "use `files` or `work_dir`",
}


def read_runtime_env(value: object) -> Mapping[str, Any]:
    """Return a request's runtime environment as it is.

    Raises ValueError for what Ray would refuse, or would read from a file of its own machine.
    """
    if not isinstance(value, dict):
        raise ValueError('expected a table, as in { pip = ["torch==2.4"] }')
    for name in value:
        if name not in _CHECKS:
            step = _ELSEWHERE.get(name, f"expected {', '.join(_CHECKS)}")
            raise ValueError(f"{name}: {step}")
        _CHECKS[name](value[name])
    if "pip" in value and "conda" in value:
        raise ValueError(
            "pip and conda cannot be used together: conda's dependencies can include pip packages"
        )
    return value
