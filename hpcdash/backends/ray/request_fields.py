"""Request fields that only Ray has: slices, retries, and the runtime environment.

The rules of the runtime environment are Ray's own: ray/_private/runtime_env/validation.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from hpcdash.backends.base import RequestField
from hpcdash.backends.ray.slices import slice_type
from hpcdash.domain.units import parse_duration

_MAX_SLICES = 4096
_MAX_RETRIES = 1_000_000
_MAX_CHIPS = 64
_MAX_SECONDS = 366 * 86400
_PIP_KEYS = ("packages", "pip_check", "pip_version", "pip_install_options")
_MODULE_EXAMPLE = '["https://example.org/lib.whl"]'
_MODULE_PROTOCOLS = ("https", "http", "s3", "gs", "azure", "abfss", "file", "gcs")
# Source: ray/_common/runtime_env_package.py; before 2.60 Ray accepts only the first two.
_MODULE_ENDINGS = (".zip", ".whl", ".tar.gz", ".tgz", ".tar.xz")


def _check_pip(value: object) -> None:
    settings = value if isinstance(value, dict) else {"packages": value}
    if unknown := [name for name in settings if name not in _PIP_KEYS]:
        raise ValueError(f"pip.{unknown[0]}: expected {', '.join(_PIP_KEYS)}")
    if "packages" not in settings:
        raise ValueError("pip.packages: missing")
    for name in ("packages", "pip_install_options"):
        if name in settings and not _are_texts(settings[name]):
            raise ValueError(f'pip.{name}: expected an array of strings, as in ["torch==2.4"]')
    if not isinstance(settings.get("pip_check", False), bool):
        raise ValueError("pip.pip_check: expected true or false")
    if not isinstance(settings.get("pip_version", ""), str):
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
    return all(isinstance(text, str) and text.strip() for text in value)


def _is_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_is_json, value.values()))
    if isinstance(value, list):
        return all(map(_is_json, value))
    return isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


_CHECKS = {"pip": _check_pip, "conda": _check_conda, "py_modules": _check_modules}
_OTHER_FIELDS = {
    "env_vars": "use [environment], which the dashboard does not show",
    "working_dir": "use `files` or `work_dir`",
}


def _read_runtime_env(value: object) -> Mapping[str, Any]:
    """Return a request's runtime environment unchanged.

    Raises ValueError if Ray would refuse it, or would read a file of its own machine.
    """
    if not isinstance(value, dict):
        raise ValueError('expected a table, as in { pip = ["torch==2.4"] }')
    for name in value:
        if name not in _CHECKS:
            hint = _OTHER_FIELDS.get(name, f"expected {', '.join(_CHECKS)}")
            raise ValueError(f"{name}: {hint}")
        _CHECKS[name](value[name])
    if "pip" in value and "conda" in value:
        raise ValueError(
            "pip and conda cannot be used together: conda's dependencies can include pip packages"
        )
    return value


def _read_slice(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected a slice type in quotes, such as v4-256")
    return slice_type(value).name


def _read_num_slices(value: object) -> tuple[int, ...]:
    sizes = value if isinstance(value, list) else [value]
    if not sizes or any(type(size) is not int or not 1 <= size <= _MAX_SLICES for size in sizes):
        raise ValueError(
            "expected a number of slices, or an array of acceptable numbers, as in [2, 4, 8]"
        )
    return tuple(sorted(set(sizes)))


def _read_retries(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_RETRIES:
        raise ValueError("expected the number of retries, a whole number")
    return value


def _read_seconds(value: object) -> int:
    seconds = parse_duration(value) if isinstance(value, str) else value
    if type(seconds) is not int or not 1 <= seconds <= _MAX_SECONDS:
        raise ValueError('expected a duration, as in "12h"')
    return seconds


def _read_chips(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_CHIPS:
        raise ValueError("expected the amount of the TPU resource per worker, a whole number")
    return value


REQUEST_FIELDS = (
    RequestField("slice", _read_slice, is_text=False),
    RequestField("num_slices", _read_num_slices, is_text=False),
    RequestField("tpus_per_worker", _read_chips, is_text=False),
    RequestField("retries_preemption", _read_retries, is_text=False),
    RequestField("retries_failure", _read_retries, is_text=False),
    RequestField("grow_after", _read_seconds, is_text=False),
    RequestField("grow_every", _read_seconds, is_text=False),
    RequestField("runtime_env", _read_runtime_env, is_text=False),
)
