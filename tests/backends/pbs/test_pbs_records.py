"""Whatever bytes a value holds and wherever the output is cut, no record is forged and what was
whole is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcdash.backends.pbs import records
from hpcdash.backends.pbs.records import Form, Records, read_all, read_attributes, read_records
from hpcdash.backends.tokens import RECORDED_TOKEN
from tests.support.records import for_each

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "pbs"
SCENES = FIXTURES / "23.06" / "scenes"
TORQUE = FIXTURES / "torque-6.1" / "printed"
LISTS = sorted(path for path in SCENES.glob("*/*.dsv") if path.stat().st_size)
WANTED = (
    "Job_Name",
    "Job_Owner",
    "job_state",
    "Resource_List.walltime",
    "Variable_List",
    "Exit_status",
    "nothing",
)
TOKEN = RECORDED_TOKEN
Fields = Mapping[str, bytes]


def shown(value: bytes) -> bytes:
    """A value as qstat writes it in DSV: see convert_feed_chars and escape_delimiter in OpenPBS's
    sources.
    """
    written = b""
    for index, byte in enumerate(value):
        if byte == 0x5C and value[index + 1 : index + 2] not in (b"'", b'"', b","):
            written += b"\\\\"
        elif byte in (0x0A, 0x0C):
            written += b"\\n" if byte == 0x0A else b"\\f"
        elif 0x20 <= byte < 0x7F or byte == 0x09:
            written += bytes([byte])
        elif (byte + 64) & 0xFF:
            written += bytes([0x5E, (byte + 64) & 0xFF])
        else:
            # The pair's second byte ends the string.
            return written + b"^"
    return written


def dsv(*entries: tuple[str, Fields], token: str = TOKEN, head: str = "Job Id: ") -> bytes:
    """Records as qstat prints them with `-F dsv -D token`."""
    return b"".join(
        token.encode().join(
            [
                (head + name).encode(),
                *(f"{key}=".encode() + shown(value) for key, value in fields.items()),
            ]
        )
        + b"\n"
        for name, fields in entries
    )


def wrapped(name: str, fields: Mapping[str, str]) -> bytes:
    """A record as `qstat -f` prints it, in lines of 78: broken after commas where it can be."""
    lines = [f"Job Id: {name}\n"]
    for key, value in fields.items():
        lines.append(f"    {key} = ")
        start = len(key) + 7
        parts = value.split(",")
        for index, part in enumerate(parts):
            if len(part) + start >= 78 and index:
                lines.append("\n\t")
                start = 9
            for letter in part:
                lines.append(letter)
                start += 1
                if start > 78:
                    lines.append("\n\t")
                    start = 8
            if index + 1 < len(parts):
                lines.append(",")
        lines.append("\n")
    return "".join([*lines, "\n"]).encode()


def read(
    raw: bytes, form: Form = Form.DSV, wanted: Iterable[str] = WANTED, *, token: str = TOKEN
) -> Records:
    found = read_records(raw, form, tuple(wanted), token=token)
    assert found is not None
    return found


def ids(raw: bytes, form: Form = Form.DSV, *, token: str = TOKEN) -> list[str]:
    listed: list[str] = read(raw, form, token=token).table["id"].to_pylist()
    assert listed == [name for name, _ in read_attributes(raw, form, token=token)]
    return listed


@for_each("path", LISTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recorded_list_is_read_whole(path: Path) -> None:
    raw = path.read_bytes()
    found = read(raw, token="@@")
    assert found.rejected == ()
    assert found.table.num_rows == raw.count(b"\n")
    named = [
        line.split(b"@@")[0].replace(b"=", b": ", 1).split(b": ")[1].decode()
        for line in raw.splitlines()
    ]
    assert found.table["id"].to_pylist() == named
    assert found.table["nothing"].null_count == len(named)


@for_each("path", [path for path in LISTS if path.stem.endswith(("jobs", "ended"))], ids=str)
def test_columns_hold_what_each_record_says(path: Path) -> None:
    raw = path.read_bytes()
    said = read_attributes(raw, Form.DSV, token="@@")
    rows = read(raw, token="@@").table.to_pylist()
    assert rows == [
        {"id": name, **{key: fields.get(key) for key in WANTED}} for name, fields in said
    ]


def test_what_a_recorded_job_says() -> None:
    raw = (SCENES / "everyday" / "jobs.dsv").read_bytes()
    rows = {row["id"]: row for row in read(raw, token="@@").table.to_pylist()}
    assert rows["3.pbs01"]["Job_Name"] == "train-llm"
    assert rows["3.pbs01"]["Resource_List.walltime"] == "02:00:00"
    assert rows["4.pbs01"]["Exit_status"] is None
    assert rows["14[].pbs01"]["Exit_status"] == "1"
    said = dict(read_attributes(raw, Form.DSV, token="@@"))["2.pbs01"]
    assert list(said)[:3] == ["Job_Name", "Job_Owner", "resources_used.cpupercent"]
    assert said["comment"] == "Job run at Sat Nov 21 at 04:01 on (cn01:ncpus=1)"


def test_names_that_are_not_ascii_come_back() -> None:
    said = dict(read_attributes((SCENES / "odd" / "jobs.dsv").read_bytes(), Form.DSV, token="@@"))
    values = {fields["Job_Name"]: fields["Submit_arguments"] for fields in said.values()}
    assert values["env_utf8"] == "-h -N env_utf8 -v A=héllo日本 sleep.sh"
    assert values["env_latin1"] == "-h -N env_latin1 -v A=x^)y sleep.sh"
    assert values["env_esc"] == "-h -N env_esc -v A=x^[[31my sleep.sh"
    assert values["env_nl"] == "-h -N env_nl -v A=x\ny sleep.sh"
    assert values["env_bslash"] == r"-h -N env_bslash -v A=x\y sleep.sh"


@given(
    text=st.text(
        st.characters(exclude_categories=["Cs"]).filter(lambda c: c >= " " and c != "\x7f"),
        max_size=30,
    )
)
def test_any_text_comes_back_as_it_was(text: str) -> None:
    raw = dsv(
        ("1.s", {"Job_Name": b"a", "comment": text.encode(), "project": b"p"}),
        ("2.s", {"Job_Name": b"b"}),
    )
    said = dict(read_attributes(raw, Form.DSV, token=TOKEN))
    assert list(said) == ["1.s", "2.s"]
    assert said["1.s"]["comment"] == text
    assert read(raw, wanted=["comment"]).table["comment"].to_pylist() == [text, None]
    assert said["1.s"]["project"] == "p"


SHAPES = st.sampled_from(
    [
        b"\xcaJob Id: 99.s",
        b"\nJob Id: 99.s",
        b"\xca",
        b"\xca\xcaName=x",
        b"\x1e",
        b"\xde",
        b"=",
        b"\\",
        b"^",
        b"\xff\n",
        b"|",
    ]
)
HOSTILE = st.lists(st.one_of(SHAPES, st.binary(max_size=12)), max_size=5).map(b"".join)


@given(name=HOSTILE, variables=HOSTILE, last=HOSTILE, size=st.sampled_from([1, 100, 1 << 22]))
def test_any_bytes_in_a_value_forge_no_record_and_no_field(
    name: bytes, variables: bytes, last: bytes, size: int
) -> None:
    one = {
        "Job_Name": name,
        "job_state": b"R",
        "Variable_List": variables,
        "Exit_status": b"0",
        "project": last,
    }
    raw = dsv(("1.s", one), ("2.s", {**one, "job_state": b"Q"}), ("3.s", one))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "_CHUNK_BYTES", size)
        found = read(raw)
    assert found.table["id"].to_pylist() == ["1.s", "2.s", "3.s"]
    assert found.table["job_state"].to_pylist() == ["R", "Q", "R"]
    assert found.table["Exit_status"].to_pylist() == ["0", "0", "0"]
    assert found.rejected == ()


@for_each("token", ["|", "@@", "\x1eabc", "=", ".*", "é", " "])
def test_a_delimiter_may_be_anything(token: str) -> None:
    said = ("1.s", {"Job_Name": b"a", "Resource_List.ncpus": b"4"})
    if token == " ":
        assert read(dsv(said, token=token, head="Name="), token=token).table.num_rows == 1
    elif token == "=":
        assert ids(b"Job Id: 1.s\n", token=token) == ["1.s"]
    else:
        (row,) = read(
            dsv(said, token=token), wanted=["Resource_List.ncpus"], token=token
        ).table.to_pylist()
        assert row == {"id": "1.s", "Resource_List.ncpus": "4"}


def test_attributes_may_be_left_out_reordered_or_come_twice() -> None:
    raw = dsv(
        ("1.s", {"Job_Name": b"a", "job_state": b"R", "Exit_status": b"1"}),
        ("2.s", {"Exit_status": b"2", "Job_Name": b"b"}),
        ("3.s", {}),
    )
    raw += f"Job Id: 4.s{TOKEN}Job_Name=c{TOKEN}job_state=Q{TOKEN}job_state=R\n".encode()
    table = read(raw).table
    assert table["id"].to_pylist() == ["1.s", "2.s", "3.s", "4.s"]
    assert table["Exit_status"].to_pylist() == ["1", "2", None, None]
    assert table["job_state"].to_pylist() == ["R", None, None, "R"]
    assert table["Job_Name"].to_pylist() == ["a", "b", None, "c"]


def test_a_greeting_and_a_warning_are_rejected_and_the_rest_stands() -> None:
    one = dsv(("1.s", {"Job_Name": b"a", "project": b"p"}))
    two = dsv(("2.s", {"Job_Name": b"b", "project": b"p"}))
    found = read(b"Welcome!\n\n" + one + b"qstat: a warning\n" + two + b"bye\n", wanted=["project"])
    assert found.table.to_pylist() == [{"id": "1.s", "project": "p"}, {"id": "2.s", "project": "p"}]
    assert found.rejected == ("Welcome!", "qstat: a warning", "bye")


def test_a_record_that_was_cut_is_rejected_and_those_before_it_stand() -> None:
    whole = dsv(
        ("1.s", {"Job_Name": b"a", "job_state": b"R"}),
        ("2.s", {"Job_Name": b"b", "job_state": b"R"}),
    )
    found = read(whole[:-3])
    assert found.table["id"].to_pylist() == ["1.s"]
    assert found.rejected == ("the output ended inside a record: Job Id: 2.s Job_Name=b job_state",)
    assert ids(whole) == ["1.s", "2.s"]


def test_nothing_is_no_record_and_something_else_is_none() -> None:
    for form in Form:
        assert read(b"", form).table.num_rows == 0
        assert read_records(b"qstat: no such option\n", form, WANTED, token=TOKEN) is None
        assert read_all(b"qstat: no such option\n", form, token=TOKEN) is None
    assert read(b"<Data></Data>\n", Form.XML).table.num_rows == 0


def test_a_node_s_comment_of_several_lines_is_one_value_and_forges_no_node() -> None:
    fields = [
        "Mom=cn01",
        "state=offline",
        "comment=first\nName=cn99\n\nlast",
        "sharing=default_shared",
    ]
    raw = (
        TOKEN.join(["Name=cn01", *fields]).encode()
        + b"\n"
        + TOKEN.join(["Name=cn02", "Mom=cn02"]).encode()
        + b"\n"
    )
    table = read(raw, wanted=["comment", "sharing"]).table
    assert table.to_pylist() == [
        {"id": "cn01", "comment": "first\nName=cn99\n\nlast", "sharing": "default_shared"},
        {"id": "cn02", "comment": None, "sharing": None},
    ]


@pytest.mark.parametrize("scene", ["everyday", "odd"])
def test_wrapped_text_says_what_dsv_says(scene: str) -> None:
    meant = read_attributes((SCENES / scene / "jobs.dsv").read_bytes(), Form.DSV, token="@@")
    text = b"".join(wrapped(name, fields) for name, fields in meant)
    assert text.count(b"\n\t") > 2 * len(meant)
    assert read_attributes(text, Form.TEXT) == meant


TEXT = b"""Job Id: 65.pbs01
    Job_Name = env_nl
    job_state = H
    Variable_List = PBS_O_HOME=/home/alice,PBS_O_LANG=C.UTF-8,
\tPBS_O_SYSTEM=Linux,A=x
y,

z,PBS_O_QUEUE=workq
    Resource_List.walltime = 02:00:00

"""


def test_a_value_of_several_lines_belongs_to_its_attribute() -> None:
    ((name, said),) = read_attributes(TEXT, Form.TEXT)
    assert name == "65.pbs01"
    assert said["Variable_List"] == (
        "PBS_O_HOME=/home/alice,PBS_O_LANG=C.UTF-8,PBS_O_SYSTEM=Linux,A=x\ny,\n\nz,PBS_O_QUEUE=workq"
    )
    assert list(said) == ["Job_Name", "job_state", "Variable_List", "Resource_List.walltime"]


def test_text_in_a_value_that_looks_like_an_attribute_or_a_job_forges_none() -> None:
    forged = TEXT.replace(
        b"A=x\ny", b"A=x\n    Job_Name = forged\nJob Id: 99.s\n\nJob Id: 98.s\n    job_state = R\ny"
    )
    ((name, said),) = read_attributes(forged, Form.TEXT)
    assert (name, said["Job_Name"], said["job_state"]) == ("65.pbs01", "env_nl", "H")


def test_text_without_the_empty_lines_between_its_records_is_read() -> None:
    narrowed = b"".join(
        line
        for line in (TEXT + TEXT.replace(b"65", b"66")).splitlines(keepends=True)
        if b"Job" in line or b"state" in line
    )
    assert ids(narrowed, Form.TEXT) == ["65.pbs01", "66.pbs01"]


def test_warnings_around_text_are_rejected_and_the_rest_stands() -> None:
    found = read(
        b"Welcome!\n" + TEXT + TEXT.replace(b"65", b"66") + b"qstat: a warning\n", Form.TEXT
    )
    assert found.table["id"].to_pylist() == ["65.pbs01", "66.pbs01"]
    assert found.rejected == ("Welcome!", "qstat: a warning")


def test_text_that_was_cut_loses_the_record_it_was_cut_in() -> None:
    two = TEXT + TEXT.replace(b"65", b"66")
    found = read(two[:-30], Form.TEXT)
    assert found.table["id"].to_pylist() == ["65.pbs01"]
    assert found.rejected == ("the output ended inside a record: 66.pbs01",)
    assert read(two + b"Job Id: 6", Form.TEXT).table["id"].to_pylist() == ["65.pbs01", "66.pbs01"]


def test_queues_and_server_come_in_one_text() -> None:
    raw = (TORQUE / "qstat-Q-f.txt").read_bytes() + (TORQUE / "qstat-B-f.txt").read_bytes()
    said = dict(read_attributes(raw, Form.TEXT))
    assert list(said)[:2] == ["batch", "gpu"]
    assert list(said.values())[-1]["default_queue"] == "batch"


def test_torque_s_xml_says_what_its_text_says() -> None:
    xml = dict(read_attributes((TORQUE / "qstat-x-t.xml").read_bytes(), Form.XML))
    text = dict(read_attributes((TORQUE / "qstat-f-t.txt").read_bytes(), Form.TEXT))
    assert list(xml) == list(text)
    told = [name for name, fields in xml.items() if "Resource_List.walltime" in fields]
    assert told
    for name in told:
        for key in (
            "Job_Name",
            "Job_Owner",
            "job_state",
            "Resource_List.walltime",
            "Resource_List.nodes",
        ):
            assert xml[name].get(key) == text[name].get(key)


def test_xml_is_read_whatever_bytes_it_holds() -> None:
    raw = (
        b'<?xml version="1.0"?>\n<Data><Job><Job_Id>1.s</Job_Id><Job_Name>a &lt;b&gt; &amp;amp; '
        b"&#xe9; \x01\xff"
        b"</Job_Name><Resource_List><nodes>1:ppn=2</nodes><walltime>01:00:00</walltime></Resource_List><depend></depend></Job>"
        b"<Job><Job_Name>no id</Job_Name></Job><Job><Job_Id>2.s</Job_Id></Job></Data>\n"
    )
    found = read(raw, Form.XML, ["Job_Name", "Resource_List.nodes", "depend"])
    assert found.table.to_pylist() == [
        {
            "id": "1.s",
            "Job_Name": "a <b> &amp; é \x01\ufffd",
            "Resource_List.nodes": "1:ppn=2",
            "depend": "",
        },
        {"id": "2.s", "Job_Name": None, "Resource_List.nodes": None, "depend": None},
    ]
    assert found.rejected == ("<Job><Job_Name>no id</Job_Name></Job>",)


def test_an_attribute_s_elements_may_hold_others() -> None:
    raw = (
        b"<Data><Job><Job_Id>1.s</Job_Id><req_information><task_count.0>1</task_count.0><task_usage.0.task.0>"
        b"<cpu_list>0-3</cpu_list></task_usage.0.task.0></req_information><x>y</x></Job></Data>"
    )
    ((_, said),) = read_attributes(raw, Form.XML)
    assert said == {
        "req_information.task_count.0": "1",
        "req_information.task_usage.0.task.0.cpu_list": "0-3",
        "x": "y",
    }


@for_each("unclosed", [b"<a>", b"<Job>", b"<a>x", b"<?xml ", b"<a><b>x</a>", b"</a>", b"<a"])
def test_elements_without_ends_cost_no_more_than_their_bytes(unclosed: bytes) -> None:
    job = b"<Job><Job_Id>1.s</Job_Id></Job>"
    found = read(
        b"<Data>" + job + b"<Job>" + unclosed * 20_000 + b"</Job>" + job + b"</Data>", Form.XML
    )
    assert found.table["id"].to_pylist()[0] == "1.s"


def test_entities_of_a_document_s_own_are_not_expanded() -> None:
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    raw = (
        '<?xml version="1.0"?><!DOCTYPE d [<!ENTITY l0 '
        f'"ha">{laughs}]><Data><Job><Job_Id>&l9;</Job_Id></Job></Data>'
    )
    assert read(raw.encode(), Form.XML).table["id"].to_pylist() == ["&l9;"]


def test_a_job_that_was_cut_takes_none_of_the_next_with_it() -> None:
    raw = b"<Data><Job><Job_Id>1.s</Job_Id><a><Job><Job_Id>2.s</Job_Id><b>c</b></Job></Data>"
    found = read(raw, Form.XML, ["b"])
    assert found.table.to_pylist() == [{"id": "2.s", "b": "c"}]
    assert len(found.rejected) == 1


def test_xml_that_was_cut_loses_only_the_last_job() -> None:
    found = read(b"<Data><Job><Job_Id>1.s</Job_Id></Job><Job><Job_Id>2.s</Job_Id><Job_", Form.XML)
    assert found.table["id"].to_pylist() == ["1.s"]
    assert len(found.rejected) == 1


def mutations(raw: bytes) -> st.SearchStrategy[bytes]:
    """`raw` cut, or with bytes changed, taken out, put in or doubled."""
    place = st.integers(0, len(raw))
    new = st.one_of(
        st.binary(max_size=8),
        SHAPES,
        st.sampled_from([TOKEN.encode(), b"\n", b"\n\n", b"9" * 25, b"</Job>"]),
    )

    def apply(edits: list[tuple[int, int, bytes]]) -> bytes:
        changed = raw
        for start, length, put in edits:
            at = start % (len(changed) + 1)
            changed = changed[:at] + put + changed[at + length % 12 :]
        return changed

    edits = st.lists(st.tuples(place, place, new), min_size=1, max_size=6).map(apply)
    return st.one_of(place.map(lambda end: raw[:end]), edits, st.binary(max_size=60))


PRINTED = {
    Form.DSV: (SCENES / "odd" / "jobs.dsv").read_bytes().replace(b"@@", TOKEN.encode())[:4000],
    Form.TEXT: TEXT * 2,
    Form.XML: (TORQUE / "qstat-x.xml").read_bytes()[:4000],
}


@pytest.mark.parametrize("form", list(Form))
@given(draw=st.data())
def test_broken_output_is_read_or_refused_and_nothing_is_raised(
    form: Form, draw: st.DataObject
) -> None:
    raw = draw.draw(mutations(PRINTED[form]))
    found = read_records(raw, form, WANTED, token=TOKEN)
    assert (read_all(raw, form, token=TOKEN) is None) == (found is None)
    if found is not None:
        assert found.table.column_names == ["id", *WANTED]
        assert found.table.num_rows == len(read_attributes(raw, form, token=TOKEN))
        found.table.to_pylist()
        assert found.table.num_rows <= raw.count(b"\n") + raw.count(b"</Job>")
