"""A request written as REQUEST.toml is the request that is read back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcdash.backends.script.body import secrets_file
from hpcdash.config.request import read_request, request_text
from hpcdash.config.toml_text import without_secrets
from hpcdash.domain.array_tasks import parse_tasks
from hpcdash.domain.request import (
    NOT_KEPT,
    Container,
    EarlySignal,
    Launcher,
    Request,
    Runtime,
    Site,
    SlotType,
)
from hpcdash.errors import UsageError
from tests.support.records import for_each

PRINTED = st.text(
    st.characters(min_codepoint=32, exclude_categories=("C", "Zl", "Zp", "Zs")),
    min_size=1,
    max_size=12,
)
LINE = st.one_of(
    PRINTED,
    st.sampled_from(['a "b" \\c', "'''", '"""', "#x", "é–漢", "a = [1]", "$HOME/`x`", "\\"]),
)
TEXT = st.lists(
    st.one_of(LINE, st.just(""), st.just('"'), st.just("\tx")), min_size=1, max_size=4
).map("\n".join)
COMMAND = TEXT.filter(lambda text: bool(text.strip()))
WORD = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
CONTAINERS = st.one_of(
    st.none(),
    st.just(Container(Runtime.NONE)),
    st.builds(
        Container,
        runtime=st.sampled_from(list(Runtime)),
        image=LINE,
        binds=st.lists(st.sampled_from(["/data", "/a:/b", "/a b:/c:ro"]), max_size=2).map(tuple),
        force_pull=st.booleans(),
    ),
)
SITES = st.builds(
    Site,
    tres_supported=st.booleans(),
    gres_supported=st.booleans(),
    job_project_source=st.sampled_from(["project", "workspace", "label", "label:cost:"]),
    storage_root=st.sampled_from(["", "/work/launches"]),
    name_prefix=WORD,
    image_root=st.sampled_from(["", "/images"]),
    keep=st.sampled_from(["always", "failed"]),
    run_as=st.sampled_from(["", "ada"]),
    node_probe=st.sampled_from(["", "nvidia-smi", 'a "b"\nc\\d """\n']),
    slot_type=st.one_of(st.none(), st.sampled_from(list(SlotType))),
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "name": LINE,
    "kind": WORD,
    "slots": st.integers(0, 10_000),
    "slots_per_node": st.one_of(st.none(), st.integers(1, 64)),
    "slot_type": st.one_of(st.none(), st.sampled_from(list(SlotType))),
    "gpu_type": LINE,
    "cpus_per_gpu": st.one_of(st.none(), st.integers(1, 64)),
    "queue": LINE,
    "account": LINE,
    "qos": LINE,
    "limit_seconds": st.integers(66_000, 10**7),
    "memory_bytes": st.integers(1 << 20, 1 << 45),
    # No scheduler reads ~ or $HOME there.
    "work_dir": LINE.filter(lambda line: not line.startswith(("~", "$HOME", "${HOME"))),
    "array": st.sampled_from(["1-10%1", "3", "0-30:5", "1,4,9%2"]).map(parse_tasks),
    "after": st.sampled_from([("12",), ("12_3", "14.server")]),
    "hold": st.booleans(),
    "signal": st.builds(
        EarlySignal, st.sampled_from(["USR1", "TERM"]), st.integers(1, 65_535), st.booleans()
    ),
    "requeue": st.booleans(),
    "kill_switch": LINE,
    "save_switch": LINE,
    "exclude_nodes": st.sampled_from([(), ("n01", "n[05-07]")]),
    "extra_args": st.lists(LINE, max_size=3).map(tuple),
    "place": st.sampled_from(["", "excl", "scatter:shared:group=rack"]),
    "attributes": st.sampled_from([(), ("umask=027", "group_list=a,b")]),
    "keep_files": st.sampled_from(["", "n", "oe", "oed"]),
    "launcher": st.sampled_from(list(Launcher)),
    "project": LINE,
    "workspace": LINE,
    "labels": st.lists(LINE, max_size=2).map(tuple),
    "environment": st.dictionaries(
        st.from_regex(r"[A-Z_][A-Z0-9_]{2,8}", fullmatch=True), st.one_of(TEXT, st.just(""))
    ),
    "container": CONTAINERS,
}
OPTIONAL = st.fixed_dictionaries({}, optional=FIELDS)
REQUESTS = st.one_of(
    st.builds(lambda command, more: Request(command=command, **more), COMMAND, OPTIONAL),
    st.builds(lambda script, more: Request(script=script, **more), LINE, OPTIONAL),
)


@given(REQUESTS, SITES)
def test_a_request_is_read_back_as_it_was(request_: Request, usual: Site) -> None:
    whole = replace(request_, site=usual)
    assert read_request(request_text(whole, site=usual), site=usual) == whole


@given(SITES)
def test_what_a_request_says_of_its_site_is_read_back(site: Site) -> None:
    request = Request(command="x", site=site)
    assert read_request(request_text(request)) == request


def test_what_is_usual_is_not_written() -> None:
    assert request_text(Request(command="python train.py")) == 'command = "python train.py"\n'


def test_what_a_person_wrote_is_written_where_it_is_usual_too() -> None:
    text = 'command = "x"\nslots = 1\nrequeue = false\n\n[site]\ntres_supported = true\n'
    request = read_request(text)
    assert request_text(request) == text
    assert read_request(request_text(request)).said == request.said


def test_a_request_is_written_as_a_person_would() -> None:
    request = Request(
        name="llm",
        command='set -e\npython train.py --note "a \\ b"',
        slots=32,
        slots_per_node=8,
        gpu_type="a100",
        queue="gpu",
        limit_seconds=20 * 3600,
        memory_bytes=480 << 30,
        array=parse_tasks("1-10%1"),
        signal=EarlySignal("USR1", 600, batch_only=True),
        extra_args=("--nice=3",),
        environment={"OMP_NUM_THREADS": "8"},
        container=Container(image="train:1.0", binds=("/data:/data:ro",)),
        site=Site(tres_supported=False),
    )
    assert request_text(request) == (
        'name = "llm"\n'
        'command = """\nset -e\npython train.py --note "a \\\\ b\\""""\n'
        "slots = 32\n"
        "slots_per_node = 8\n"
        'gpu_type = "a100"\n'
        'queue = "gpu"\n'
        'time = "20:00:00"\n'
        'memory = "480G"\n'
        'array = "1-10%1"\n'
        'signal = "B:USR1@600"\n'
        'extra_args = ["--nice=3"]\n'
        '\n[environment]\nOMP_NUM_THREADS = "8"\n'
        '\n[container]\nimage = "train:1.0"\nbinds = ["/data:/data:ro"]\n'
        "\n[site]\ntres_supported = false\n"
    )


@for_each("amount", [1 << 20, 3 << 29, (1 << 20) + 1, 1 << 40])
def test_memory_keeps_every_byte(amount: int) -> None:
    request = Request(command="x", memory_bytes=amount)
    assert read_request(request_text(request)) == request


@pytest.mark.parametrize(
    "environment",
    [
        '[environment]\nHF_TOKEN = """\nhunter2"""\nA = "1"',
        'environment = {HF_TOKEN = "hunter2", A = "1"}',
    ],
)
def test_of_a_secret_the_name_alone_is_remembered_and_it_is_not_submitted_so(
    environment: str,
) -> None:
    text = f'command = "echo {{}}"\n{environment}\n'
    kept = without_secrets(text)
    assert "hunter2" not in kept
    request = read_request(kept)
    assert replace(request, environment={}) == replace(read_request(text), environment={})
    assert request.environment == {"HF_TOKEN": NOT_KEPT, "A": "1"}
    with pytest.raises(UsageError, match="the value of HF_TOKEN is unknown"):
        secrets_file(request)


@for_each(
    ("name", "value"),
    [
        ("PGPASSWORD", "hunter2"),
        ("MYSQL_PWD", "hunter2"),
        ("SSHPASS", "hunter2"),
        ("GITHUB_PAT", "hunter2"),
        ("AZURE_CREDENTIALS", '{"clientSecret": "hunter2"}'),
        ("OPENAI_KEY", "sk-proj-hunter2hunter2hunter2"),
        ("DATABASE_URL", "postgres://alice:hunter2@db/train"),
        ("EXTRA_INDEX", "https://:hunter2@pypi.example.org/simple"),
    ],
)
def test_a_password_a_token_or_a_key_is_not_remembered(name: str, value: str) -> None:
    kept = without_secrets(f"command = 'true'\n[environment]\n{name} = '{value}'\nA = '1'\n")
    assert "hunter2" not in kept
    assert read_request(kept).environment == {name: NOT_KEPT, "A": "1"}


@for_each(
    ("name", "value"),
    [
        ("GOOGLE_APPLICATION_CREDENTIALS", "/home/alice/key.json"),
        ("APPTAINER_PWD", "~/work"),
        ("OLDPWD", "/tmp"),
        ("FILE_PAT", "*.npz"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_TOKENS", "4096"),
        ("URL", "https://alice@example.org:8080/a"),
        ("SORT_KEY", "step"),
        ("COMPASS", "north"),
        ("BYPASS", "1"),
    ],
)
def test_what_only_looks_like_a_secret_is_remembered(name: str, value: str) -> None:
    text = f"command = 'true'\n[environment]\n{name} = '{value}'\n"
    assert without_secrets(text) == text


@for_each("text", ['command = "x"\n# mine\n[environment]\nA = "1"\n', "environment = 1", "no toml"])
def test_a_request_without_secrets_is_remembered_as_it_was_written(text: str) -> None:
    assert without_secrets(text) == text
