"""[launch] and [clusters.NAME.launch]: what generated scripts are to know of a site."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcdash.config.problems import ConfigProblems
from hpcdash.config.queue_defaults import with_queue_defaults
from hpcdash.config.read import settings_from_text
from hpcdash.config.request import read_request
from hpcdash.config.settings import Settings
from hpcdash.domain.request import Site, SlotType
from tests.support.records import for_each

FILE = Path("/home/ada/config.toml")
TEXT = """\
[launch]
tres_supported = false
storage_root = "/work/ada/launches"
apptainer_image_root = "/work/images"
keep = "failed"
run_as = "user"
slot_type = "rocm"

[launch.queues.gpu]
account = "llm"
time = "90m"
extra_args = ["--constraint=a100"]
environment.NCCL_DEBUG = "INFO"

[clusters.juno]
ssh = "juno"
user = "ada"

[clusters.juno.launch]
tres_supported = true
name_prefix = "llm"
queues.GPU.account = "own"
queues.GPU.extra_args = ["--nice=3"]
queues.GPU.environment.NCCL_DEBUG = "WARN"
queues.cpu.slot_type = "cpu"

[clusters.here]
"""


def read(text: str) -> Settings:
    return settings_from_text(text, FILE)


def problem(text: str) -> str:
    with pytest.raises(ConfigProblems) as raised:
        read(text)
    return str(raised.value).splitlines()[0]


def test_a_cluster_has_what_all_have_and_its_own_over_it() -> None:
    settings = read(TEXT)
    common = Site(
        tres_supported=False,
        storage_root="/work/ada/launches",
        image_root="/work/images",
        keep="failed",
        slot_type=SlotType.ROCM,
    )
    assert settings.launch.site == common
    assert settings.clusters["here"].launch == settings.launch
    juno = settings.clusters["juno"].launch.site
    assert (juno.tres_supported, juno.name_prefix, juno.image_root) == (True, "llm", "/work/images")


def test_of_a_queue_scalars_override_and_lists_append_whatever_the_case_of_its_name() -> None:
    settings = read(TEXT)
    common = {
        "account": "llm",
        "limit_seconds": 5400,
        "extra_args": ("--constraint=a100",),
        "environment": {"NCCL_DEBUG": "INFO"},
    }
    assert settings.launch.queues == {"gpu": common}
    assert settings.clusters["juno"].launch.queues == {
        "gpu": {
            **common,
            "account": "own",
            "extra_args": ("--constraint=a100", "--nice=3"),
            "environment": {"NCCL_DEBUG": "WARN"},
        },
        "cpu": {"slot_type": SlotType.CPU},
    }


def test_the_launch_program_is_in_its_usual_place_or_where_a_cluster_has_it() -> None:
    settings = read('[clusters.a]\n[clusters.b]\nlaunch.launch_program = "/opt/site/launch"')
    assert settings.clusters["a"].launch.launch_program == "/usr/local/libexec/hpcdash-launch"
    assert settings.clusters["b"].launch.launch_program == "/opt/site/launch"
    whole = read('[launch]\nlaunch_program = "/opt/all"\n[clusters.a]\nlaunch.keep = "failed"')
    assert whole.clusters["a"].launch.launch_program == "/opt/all"


def test_run_as_user_is_the_cluster_s_user_and_oneself_where_none_is_set() -> None:
    settings = read(TEXT)
    assert settings.clusters["juno"].launch.site.run_as == "ada"
    assert settings.clusters["here"].launch.site.run_as == ""
    assert read('[clusters.a]\nlaunch.run_as = "grace"').clusters["a"].launch.site.run_as == "grace"


@for_each(
    ("text", "words"),
    [
        (
            "[launch]\ngres_suported = true",
            '2: launch.gres_suported: unknown key; did you mean "gres_supported"?',
        ),
        (
            '[launch]\nkeep = "allways"',
            '2: launch.keep: expected "always", "failed", "nothing", not "allways"; did you mean',
        ),
        (
            '[launch]\nstorage_root = "launches"',
            "2: launch.storage_root: expected an absolute folder",
        ),
        (
            '[launch]\nstorage_root = "/a b"',
            '2: launch.storage_root: "/a b" is not a launch folder',
        ),
        (
            '[launch]\nimage_root = "images"',
            "2: launch.image_root: expected an absolute folder",
        ),
        (
            '[launch]\nimage_root = "/a"\nsingularity_image_root = "/b"',
            "3: launch.singularity_image_root: image_root is also set",
        ),
        (
            '[launch]\nlaunch_program = "bin/x"',
            '2: launch.launch_program: "bin/x" is not a program path',
        ),
        (
            '[launch]\nlaunch_program = "/opt/../x"',
            '2: launch.launch_program: "/opt/../x" is not a program path',
        ),
        ('[launch]\nrun_as = "root"', "2: launch.run_as: jobs cannot be submitted as root"),
        ('[launch]\nrun_as = "A B"', '2: launch.run_as: "A B" is not a login name'),
        (
            '[launch]\nstorage_root = "/a/../b"',
            '2: launch.storage_root: "/a/../b" is not a launch folder',
        ),
        (
            '[clusters.a.launch]\nrun_as = "user"',
            '2: clusters.a.launch.run_as: "user" means the cluster\'s user',
        ),
        (
            '[launch]\njob_project_source = "lable"',
            "2: launch.job_project_source: expected project, workspace",
        ),
        ('[launch.queues.gpu]\nqueue = "gpu"', "2: launch.queues.gpu.queue: unknown key"),
        (
            '[launch.queues.""]\nslots_per_node = 8',
            '1: launch.queues."": the name of a queue is missing',
        ),
        (
            "[launch.queues.gpu]\nslots_per_nod = 8",
            '2: launch.queues.gpu.slots_per_nod: unknown key; did you mean "sl',
        ),
        ('[launch.queues.gpu]\ntime = "90"', '2: launch.queues.gpu.time: "90" has no unit'),
        (
            "[launch.queues.gpu]\n[launch.queues.GPU]",
            "2: launch.queues.GPU: the same queue as gpu: case does not matter",
        ),
        (
            "[clusters.a.launch]\nkepe = 1",
            '2: clusters.a.launch.kepe: unknown key; did you mean "keep"?',
        ),
        ('storage_root = "/a"', "1: storage_root: unknown key; it belongs in [launch]"),
        ("launch = 3", "1: launch: expected a table, not 3"),
        ("[launch]\nqueues = 3", "2: launch.queues: expected a table, not 3"),
        ("[launch.queues]\ngpu = 3", "2: launch.queues.gpu: expected a table, not 3"),
        (
            "[launch.queues.gpu.environment]\nA = true",
            "2: launch.queues.gpu.environment.A: expected text in quotes",
        ),
    ],
)
def test_what_is_wrong_is_told_with_file_line_and_key(text: str, words: str) -> None:
    assert problem(text).startswith(f"{FILE}:{words}")


def test_a_queue_s_probe_counts_in_place_of_the_site_s_and_a_request_s_own_over_both() -> None:
    probes = (
        '[launch]\nnode_probe = "true"\n[launch.queues.gpu]\nnode_probe = """\nnvidia-smi '
        '&&\n  true\n"""\n'
    )
    launch = read(f"{probes}[clusters.a]\n").clusters["a"].launch
    assert launch.site.node_probe == "true"

    def probe(request: str) -> str:
        asked = read_request(request, site=launch.site)
        return with_queue_defaults(asked, launch.queues, ()).site.node_probe

    assert probe('command = "x"\nqueue = "cpu"') == "true"
    assert probe('command = "x"\nqueue = "GPU"') == "nvidia-smi &&\n  true\n"
    assert probe('command = "x"\nqueue = "gpu"\n[site]\nnode_probe = "ls"') == "ls"
