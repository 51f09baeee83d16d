"""What #PBS lines ask for is said in a few words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs.explain import explain
from hpcdash.backends.pbs.options import OPTIONS
from hpcdash.domain.scripts import NOT_READ, LineKind, script_lines
from tests.support.records import for_each


@for_each(
    ("asked", "said"),
    [
        ("-l select=2:ncpus=4:ngpus=1:mem=8gb", "2 chunks of 4 CPUs, 1 GPU, 8 GB of memory"),
        ("-l select=1:ncpus=1+2:ngpus=2:host=cn02", "1 chunk of 1 CPU and 2 chunks of 2 GPUs, host "
                                                    "cn02"),
        ("-l select=ncpus=4", "1 chunk of 4 CPUs"),
        ("-l select=3", "3 chunks"),
        ("-l place=scatter:excl", "each chunk on its own node, exclusive nodes"),
        ("-l place=pack:group=rack", "all chunks on one node, on nodes of the same rack"),
        ("-l nodes=2:ppn=4,walltime=1:00:00", "2 nodes of 4 CPUs; time limit 1 h"),
        ("-l nodes=g01:ppn=2:gpus=1", "1 node of g01, 2 CPUs, 1 GPU"),
        ("-l walltime=5400", "time limit 1 h 30 min"),
        ("-l walltime=90:00", "time limit 1 h 30 min"),
        ("-l walltime=soon", "time limit soon"),
        ("-l mem=1024", "1024 B of memory"),
        ("-l mem=4gb,ncpus=1", "4 GB of memory; 1 CPU"),
        ("-l filesystems=home:eagle", "filesystems home:eagle"),
        ("-q gpu", "queue gpu"),
        ("-N sim -P 'big project'", "called sim; project big project"),
        ("-k oed", "writes the log directly to its destination: readable while the job runs"),
        ("-koe", "stdout and stderr stay in the home folder of its node"),
        ("-k o", "stdout stays in the home folder of its node"),
        ("-j oe", "stderr goes into stdout's file"),
        ("-J 1-10%1", "array of 10 tasks, one at a time"),
        ("-J 0-20:5%2", "array of 5 tasks, 2 at a time"),
        ("-t 1,3,7", "array of 3 tasks"),
        ("-J x", "array x"),
        ("-k od", "writes stdout directly to its destination: readable while the job runs"),
        ("-W depend=afterok:1:2.pbs01,umask=022", "starts after jobs 1, 2.pbs01 succeeded; "
                                                  "creates files with umask 022"),
        ("-W depend=afterany:2[].pbs01,beforeok:4", "starts after job 2[].pbs01 ended; job 4 waits "
                                                    "for its success"),
        ("-W depend=afteranyarray:12[]", "starts after job 12[] ended"),
        ("-W depend=on:2", "starts after 2 jobs with a before dependency release it"),
        ("-W sandbox=PRIVATE", "runs in its own folder"),
        ("-W strange=1", "strange 1"),
        ("-W depend", "-W depend is not NAME=VALUE"),
        ("-r n", "never rerun"),
        ("-m abe -M bob@example.org", "mail when it is aborted or it begins or it ends; mail to "
                                      "bob@example.org"),
        ("-m n", "no mail"),
        ("-v A=1,B,PATH=/x", "sets A, B, PATH"),
        ("-h", "submitted held"),
        ("-Z x", "unknown to PBS: -Z; x is not a qsub option"),
        ("-N", "-N is missing its value"),
        ("-N 'a", "-N 'a is missing its closing quote"),
        ("walltime=1", "walltime=1 is not a qsub option"),
        ("", ""),
    ],
)  # fmt: skip
def test_each_option_is_in_words(asked: str, said: str) -> None:
    assert explain(f"#PBS {asked}") == said


@for_each("letter", sorted(OPTIONS))
def test_there_are_words_for_each_option(letter: str) -> None:
    _, takes = OPTIONS[letter]
    assert explain(f"#PBS -{letter}{' 1' if takes == 'value' else ''}").strip()


@for_each("line", ["", "#", "# PBS -h", "#!/bin/sh", "##PBS -h", "echo '#PBS -h'", "#SBATCH -H"])
def test_other_lines_ask_for_nothing(line: str) -> None:
    assert explain(line) == ""


def test_blanks_before_a_directive_and_dos_line_ends_do_not_hide_it() -> None:
    assert explain("  \t#PBS -h\r") == "submitted held"
    assert explain("#PBS -h \\") == "submitted held"


def test_a_directive_behind_a_command_is_said_not_to_be_read() -> None:
    lines = script_lines("#!/bin/sh\n  #PBS -h\n\n# a word\ncd x\n#PBS -N late\n", explain)
    assert [line.note for line in lines] == ["", "submitted held", "", "", "", NOT_READ]
    assert [line.number for line in lines if line.kind is LineKind.DIRECTIVE] == [2]


@given(st.text(max_size=80))
def test_no_line_breaks_it(text: str) -> None:
    assert explain(f"x{text}") == ""
    assert isinstance(explain(f"#PBS{text}"), str)


@given(st.sampled_from("lWJtkmv"), st.text(alphabet="selctnodwaime=:+,%0123-'\" ", max_size=40))
def test_no_value_breaks_it(letter: str, value: str) -> None:
    assert isinstance(explain(f"#PBS -{letter} {value}"), str)
