"""A request's runtime environment is checked as Ray checks it, and goes with the job."""

from __future__ import annotations

import json

import pytest

from hpcdash.backends.ray.backend import BACKEND
from hpcdash.config.problems import ConfigProblems
from hpcdash.config.request import read_request, request_text
from hpcdash.config.toml_text import without_secrets
from hpcdash.domain.demand import format_finding
from hpcdash.domain.offers import Offers
from hpcdash.domain.request import Request
from hpcdash.errors import UsageError
from tests.support.records import for_each

INDEX = "--index-url https://me:s3cret@pypi.lab/simple"


def request(lines: str) -> Request:
    return read_request(f'command = "true"\n[runtime_env]\n{lines}\n', "request.toml")


@for_each(
    ("lines", "wanted"),
    [
        ('pip = ["torch==2.4", "six"]', {"pip": ["torch==2.4", "six"]}),
        (
            'pip = { packages = ["six"], pip_check = true, pip_version = "==24.0" }',
            {"pip": {"packages": ["six"], "pip_check": True, "pip_version": "==24.0"}},
        ),
        ('conda = "torch"', {"conda": "torch"}),
        (
            'conda = { dependencies = ["python=3.11", { pip = ["six"] }] }',
            {"conda": {"dependencies": ["python=3.11", {"pip": ["six"]}]}},
        ),
        ('py_modules = ["s3://lab/lib.zip"]', {"py_modules": ["s3://lab/lib.zip"]}),
    ],
)
def test_a_runtime_environment_goes_with_the_job(lines: str, wanted: dict[str, object]) -> None:
    asked = request(lines)
    assert read_request(request_text(asked), "again.toml") == asked
    made = BACKEND.submit.request(asked, b"PK", "hpcdash:1", {})
    body = json.loads(made.submission.command.stdin or b"")["runtime_env"]
    assert body.pop("working_dir").startswith("gcs://_ray_pkg_")
    assert body == wanted
    assert json.dumps(wanted, sort_keys=True) in made.shown
    assert BACKEND.submit.request_findings(asked, Offers()) == ()


@for_each(
    ("lines", "words"),
    [
        ('pip = "requirements.txt"', "pip.packages: expected an array of strings"),
        ("pip = [1]", "pip.packages: expected an array of strings"),
        ("pip = { pip_check = true }", "pip.packages: missing"),
        ('pip = { packages = ["a"], find_links = "x" }', "pip.find_links: expected packages"),
        ('pip = { packages = ["a"], pip_check = 1 }', "pip.pip_check: expected true or false"),
        ('conda = "environment.yml"', "conda: files are not supported"),
        ("conda = 3", "conda: expected the name or folder"),
        ("conda = { made = 2026-01-01 }", "conda: expected only strings, numbers"),
        ("conda = { size = inf }", "conda: expected only strings, numbers"),
        ('pip = ["a"]\nconda = "b"', "pip and conda cannot be used together"),
        ('py_modules = ["src/lib"]', "src/lib is not a URI"),
        ('py_modules = ["ftp://lab/lib.zip"]', "ftp is not one of https"),
        ('py_modules = ["https://lab/lib.py"]', "ends in none of .zip"),
        ('env_vars = { A = "1" }', "env_vars: use [environment]"),
        ('uv = ["a"]', "uv: expected pip, conda, py_modules"),
    ],
)
def test_what_ray_would_refuse_is_refused_with_its_line(lines: str, words: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        request(lines)
    assert "request.toml:2: runtime_env: " in str(caught.value)
    assert words in str(caught.value)


def test_a_secret_in_a_runtime_environment_is_reported_and_neither_shown_nor_kept() -> None:
    asked = request(f'pip = ["{INDEX}", "six"]')
    [finding] = BACKEND.submit.request_findings(asked, Offers())
    assert "anyone with access to the dashboard can read" in format_finding(finding)
    made = BACKEND.submit.request(asked, b"PK", "hpcdash:1", {})
    assert "s3cret" not in made.shown
    body = json.loads(made.submission.command.stdin or b"")
    assert body["runtime_env"]["pip"] == [INDEX, "six"]
    assert "s3cret" not in json.dumps(body["metadata"])
    kept = without_secrets(request_text(asked))
    assert "s3cret" not in kept
    with pytest.raises(UsageError, match="secrets are not saved with a submission"):
        BACKEND.submit.request(read_request(kept, "kept.toml"), b"PK", "hpcdash:1", {})
