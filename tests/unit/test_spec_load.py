"""fleet.yaml is read, or every problem in it is told at its place."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from fleetctl.errors import SpecError
from fleetctl.spec.fleet import PerBox
from fleetctl.spec.fleet_model import Container, Venv
from fleetctl.spec.load import load_fleet, parse_fleet
from fleetctl.spec.problems import FleetFileError, Problem

EXAMPLE = Path(__file__).parents[2] / "templates" / "example.yaml"
LAUNCHES = "{venv: …}, {image: …}, {program: …} or {build: …}"

SMALL = """\
fleet: office
boxes:
  spark1: {address: 10.0.0.1, memory: 128GB, reserve: 30GB}
  spark2: {address: 10.0.0.2, memory: 128GB, reserve: 30GB}
models:
  qwen: {weights: /models/qwen, context: 8192, launch: {venv: /opt/vllm}}
  tiny: {weights: org/tiny, context: 8192, launch: {image: vllm/vllm}}
layouts:
  replicas:
    qwen: {copies: [spark1, spark2]}
proxy: {box: spark1}
"""


def problems(text: str) -> list[Problem]:
    with pytest.raises(FleetFileError) as caught:
        parse_fleet(text, "fleet.yaml")
    return list(caught.value.problems)


def said(text: str) -> list[str]:
    return [problem.said("fleet.yaml") for problem in problems(text)]


def changed(old: str, new: str) -> str:
    assert old in SMALL
    return SMALL.replace(old, new, 1)


def test_the_example_loads_with_every_value_of_the_file() -> None:
    loaded = load_fleet(EXAMPLE)
    fleet = loaded.fleet
    assert loaded.text == EXAMPLE.read_text()
    assert loaded.path == EXAMPLE
    assert fleet.boxes["spark1"].memory == int(121.6 * 1024**3)
    assert fleet.boxes["spark2"].ssh.port == 22
    assert fleet.launch("qwen") == Venv(venv="/opt/vllm")
    assert fleet.layouts["split"]["qwen"].split == {"spark1": PerBox(), "spark2": PerBox()}
    assert fleet.layouts["replicas"]["qwen"].boxes["spark1"].concurrency == 8
    assert fleet.proxy.hold == 1200
    assert fleet.superseded_on("spark2") == ["old-vllm.service"]


def test_a_small_file_gets_the_defaults() -> None:
    fleet = parse_fleet(SMALL, "fleet.yaml")
    assert fleet.models["tiny"].launch == Container(image="vllm/vllm")
    assert fleet.layouts["replicas"]["qwen"].concurrency == 12
    assert fleet.proxy.port == 8080


def test_every_problem_is_told_in_one_pass_in_the_order_of_the_file() -> None:
    text = """\
fleet: 123
boxes:
  Spark 1:
    adress: 192.168.1.11
    memory: 121.6G
    reserve: 31GiB
  spark2: {address: 10.0.0.2, memory: 10GiB, reserve: 12GiB}
models:
  qwen:
    weights: /models/qwen
    context: "262,144"
    launch: {venv: /opt/vllm, image: x}
layouts:
  replicas:
    qwn: {copies: [spark2, sprak2]}
proxy: {box: spark3, port: 70000}
"""
    with pytest.raises(SpecError) as caught:
        parse_fleet(text, "fleet.yaml")
    lines = str(caught.value).splitlines()
    assert lines == [
        'fleet.yaml:1:8: fleet: 123 is read by YAML as a number; for text write "123" in quotes',
        'fleet.yaml:3:3: boxes."Spark 1": a name is lower-case letters, digits and dashes, begins with a letter or '
        "digit, at most 31 long; did you mean spark-1?",
        'fleet.yaml:4:5: boxes."Spark 1".adress: there is no such key here; did you mean address?',
        'fleet.yaml:5:13: boxes."Spark 1".memory: "121.6G" is not right: a size is a number with a unit, '
        "like 71GiB or 128GB; did you mean 121.6GiB?",
        "fleet.yaml:7:55: boxes.spark2.reserve: memory 10.0 GiB - reserve 12.0 GiB leaves nothing for an engine; "
        "write less",
        'fleet.yaml:11:14: models.qwen.context: "262,144" is text; write 262144 without quotes',
        f"fleet.yaml:12:13: models.qwen.launch: venv and image cannot both be here; write {LAUNCHES}",
        'fleet.yaml:15:5: layouts.replicas.qwn: there is no model "qwn"; did you mean qwen?',
        'fleet.yaml:15:28: layouts.replicas.qwn.copies[1]: there is no box "sprak2"; did you mean spark2?',
        'fleet.yaml:16:14: proxy.box: there is no box "spark3"; did you mean spark2?',
        "fleet.yaml:16:28: proxy.port: 70000 is out of range; write a whole number from 1 to 65535",
        "11 problems in fleet.yaml",
    ]
    assert caught.value.exit_code == 2


def test_a_missing_key_is_told_at_the_part_that_misses_it() -> None:
    text = changed("address: 10.0.0.1, memory: 128GB, ", "")
    assert said(text) == [
        "fleet.yaml:3:3: boxes.spark1: the keys address and memory must be here; "
        "write {address: …, memory: …, reserve: …}"
    ]


STRUCTURE = [
    # (in the small file, in its place, path of the problem, part of what is said)
    ("memory: 128GB", "memory: ", "boxes.spark1.memory", "a size is a number with a unit"),
    ("memory: 128GB", "memory: [1]", "boxes.spark1.memory", "a list is not right: a size"),
    ("memory: 128GB", "memory: -1", "boxes.spark1.memory", "not negative"),
    ("context: 8192", "context: 8192.5", "models.qwen.context", "must be a whole number from 1 up"),
    ("context: 8192", "context: true", "models.qwen.context", "true is yes or no and must be a whole number"),
    ("context: 8192", "context: many", "models.qwen.context", '"many" is text and must be a whole number'),
    ("context: 8192", "context: 0", "models.qwen.context", "0 is out of range; write a whole number from 1 up"),
    ("context: 8192", "context: 8192, runtime: vlm", "models.qwen.runtime", "did you mean vllm?"),
    ("context: 8192", "context: 8192, served_as: qwen", "models.qwen.served_as", "write [qwen]"),
    ("context: 8192", "context: 8192, environment: {A: {}}", "models.qwen.environment.A", "exactly one of env"),
    ("context: 8192", "context: 8192, environment: {A: {evn: B}}", "models.qwen.environment.A.evn", "mean env?"),
    ("context: 8192", "context: 8192, environment: {A: [B]}", "models.qwen.environment.A", "write text or a secret"),
    ("context: 8192", "context: 8192, environment: {A: 1}", "models.qwen.environment.A", 'write "1" in quotes'),
    ("context: 8192", "context: 8192, environment: {A: on}", "models.qwen.environment.A", 'write "on" in quotes'),
    ("context: 8192", "context: 8192, speculative: {method: mtp}", "models.qwen.speculative", "num_spec"),
    ("launch: {venv: /opt/vllm}", "launch: {vnev: /opt/vllm}", "models.qwen.launch.vnev", "did you mean venv?"),
    ("launch: {venv: /opt/vllm}", "launch: {build: v33}", "models.qwen.launch.build", "there is no build"),
    ("context: 8192", "context: 8192, task: embedd", "models.qwen.task", "did you mean embed?"),
    ("launch: {venv: /opt/vllm}", "launch: {}", "models.qwen.launch", f"write {LAUNCHES}"),
    ("launch: {venv: /opt/vllm}", "launch: /opt/vllm", "models.qwen.launch", f"write {LAUNCHES}"),
    ("launch: {venv: /opt/vllm}", "launch: {image: x, engine: dokcer}", "models.qwen.launch.engine", "mean docker?"),
    ("launch: {venv: /opt/vllm}", "launch: {image: x, gpus: nvdia}", "models.qwen.launch.gpus", "did you mean nvidia?"),
    ("launch: {venv: /opt/vllm}", "launch: {image: x, id: abc}", "models.qwen.launch.id", "sha256: and 64 hex digits"),
    ("copies: [spark1, spark2]", "copies: []", "layouts.replicas.qwen.copies", "at least one"),
    ("copies: [spark1, spark2]", "copies: [spark1, 2]", "layouts.replicas.qwen.copies", "[spark1, spark2]"),
    ("copies: [spark1, spark2]", "copies: [spark1, spark1]", "layouts.replicas.qwen.copies", "twice: spark1"),
    ("copies: [spark1, spark2]", "copies: {spark1: 8}", "layouts.replicas.qwen.copies.spark1", "is a number; "),
    ("copies: [spark1, spark2]", "copis: [spark1]", "layouts.replicas.qwen.copis", "did you mean copies?"),
    ("copies: [spark1, spark2]", "concurrency: 3", "layouts.replicas.qwen", "exactly one of copies:, split: and pool:"),
    ("copies: [spark1, spark2]", "split: [spark1]", "layouts.replicas.qwen", "at least two boxes"),
    ("proxy: {box: spark1}", "proxy:", "proxy", "this is empty; write {box: …}"),
    ("proxy: {box: spark1}", "proxy: {box: spark1, api_keys: {A: {env: K}}}", "proxy.api_keys.A", "did you mean a?"),
    ("proxy: {box: spark1}", "proxy: {box: spark1}\nsuperseded: [old]", "superseded[0].unit", "named in full"),
    ("proxy: {box: spark1}", "proxy: {box: spark1}\ngates:", "gates", "{completion: …, embedding: …, "),
    ("fleet: office", "fleet: Office", "fleet", "lower-case letters"),
    ("fleet: office", "fleet: null", "fleet", "there is no value"),
    ("fleet: office", "flet: office", "flet", "did you mean fleet?"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "path", "part"), STRUCTURE, ids=[row[1] for row in STRUCTURE])
def test_a_value_that_does_not_fit_is_told_once_in_plain_words(old: str, new: str, path: str, part: str) -> None:
    (line,) = said(changed(old, new))
    assert f": {path}: " in line
    assert part in line
    assert not re.search(r"pydantic|Input should|type=|https?://|Extra inputs|NoneType|\bdict\b|\bstr\b", line)


YAML_SURPRISES = [
    ("fleet: office", "fleet: no", '1:8: fleet: no is read by YAML as yes or no (false); for text write "no"'),
    ("  spark1: {", "  on: {", '3:3: boxes: the key on is read by YAML as yes or no; write it in quotes: "on"'),
    ("  spark1: {", "  1: {", '3:3: boxes: the key 1 is read by YAML as a number; write it in quotes: "1"'),
    ("{box: spark1}", "{box: spark1, port: 0777}", "11:28: proxy.port: 0777 is read by YAML as the octal number 511"),
    ("{box: spark1}", "{box: spark1, port: 0x1F}", "hexadecimal number 31; for a number write 31"),
    ("{box: spark1}", "{box: spark1, port: 22:30}", "22:30 is read by YAML as a number to base 60"),
    ("{box: spark1}", "{box: spark1, hold: .inf}", ".inf is not a number to reckon with"),
    ("{box: spark1}", "{box: spark1, hold: 1.0e+999}", "1.0e+999 is too large a number"),
    ("{box: spark1}", f"{{box: spark1, port: {'9' * 5000}}}", "a number of 5000 digits is too large"),
    ("fleet: office", "fleet: !!python/name:os.system office", "1:8: fleet: the tag !!python/name:os"),
    ("fleet: office", 'fleet: "a\\0b"', "NUL"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "part"), YAML_SURPRISES, ids=[row[1][:40] for row in YAML_SURPRISES])
def test_what_yaml_reads_differently_from_how_it_looks_is_pointed_out(old: str, new: str, part: str) -> None:
    assert any(part in line for line in said(changed(old, new)))


def test_a_date_is_text_where_text_is_wanted() -> None:
    text = changed("context: 8192", "context: 8192, environment: {RELEASED: 2024-05-01}")
    assert parse_fleet(text, "fleet.yaml").models["qwen"].environment["RELEASED"] == "2024-05-01"


SYNTAX = [
    ("boxes:\n\tspark1: {}\n", 2, 1, "replace the tab by spaces"),
    ("fleet: a: b\n", 1, 9, "no key can begin here"),
    ("fleet: 'office\n", 1, 8, "the quote that begins here is never closed"),
    ("fleet: [a, b\nboxes: 1\n", 1, 8, "the [ that begins here is not closed"),
    ("fleet: {a: 1\n", 1, 8, "the { that begins here is not closed"),
    ("fleet: @office\n", 1, 8, "text cannot begin with @"),
    ("fleet: a\nboxes\nmodels: b\n", 2, 1, "this has no `:`"),
    ("fleet: *x\n", 1, 8, "no &anchor of that name"),
    ("fleet: a\n---\nfleet: b\n", 2, 1, "a second document begins here"),
    ('fleet: "a\\qb"\n', 1, 10, "a backslash in double quotes"),
    ("- a\nb: 1\n", 2, 1, "does not begin with `-`"),
    ("[" * 3000, 1, None, "nested too deeply"),
]


@pytest.mark.parametrize(("text", "line", "column", "part"), SYNTAX, ids=[row[0][:14] for row in SYNTAX])
def test_broken_yaml_is_shown_with_a_caret_below_the_place(text: str, line: int, column: int | None, part: str) -> None:
    (problem,) = problems(text)
    what, shown, caret = problem.message.splitlines()
    assert problem.line == line
    assert part in what
    assert caret.strip() == "^"
    if column is not None:
        assert problem.column == column
        assert shown[4:].rstrip() == text.splitlines()[line - 1].replace("\t", " ")
        assert len(caret) == 4 + column


def test_a_character_that_yaml_does_not_allow_is_named_at_its_place() -> None:
    assert said("fleet: office\nboxes: a\x07b\n") == [
        "fleet.yaml:2:9: a character that YAML does not allow (U+0007); delete it"
    ]


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "---\n", "null\n", "\ufeff"])
def test_a_file_with_nothing_in_it_says_what_is_needed(text: str) -> None:
    (line,) = said(text)
    assert "fleet, boxes, models, layouts and proxy" in line
    assert "fleetctl init" in line


@pytest.mark.parametrize(
    ("text", "kind"), [("- a\n", "a list"), ("office\n", "a single value"), ("3\n", "a single value")]
)
def test_a_file_that_is_no_mapping_says_so(text: str, kind: str) -> None:
    (line,) = said(text)
    assert line.startswith(f"fleet.yaml:1:1: the file is {kind}, and must be a mapping")


@pytest.mark.parametrize("changed_text", [SMALL.replace("\n", "\r\n"), "\ufeff" + SMALL, "# ä € 🙂\n" + SMALL])
def test_line_ends_byte_order_marks_and_other_letters_do_no_harm(changed_text: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(changed_text.encode())
    assert load_fleet(path).fleet == parse_fleet(SMALL, "fleet.yaml")


def test_a_key_that_is_there_twice_is_a_problem_at_the_second() -> None:
    text = SMALL + "proxy: {box: spark2}\n"
    assert said(text) == ["fleet.yaml:12:1: proxy: this key is already on line 11; keep one of the two"]


def test_anchors_and_merge_keys_work_and_what_is_written_wins() -> None:
    text = SMALL.replace(
        "spark1: {address: 10.0.0.1, memory: 128GB, reserve: 30GB}",
        "spark1: &box {address: 10.0.0.1, memory: 128GB, reserve: 30GB}",
    ).replace(
        "spark2: {address: 10.0.0.2, memory: 128GB, reserve: 30GB}",
        "spark2: {<<: *box, address: 10.0.0.2, reserve: 40GB}",
    )
    boxes = parse_fleet(text, "fleet.yaml").boxes
    assert boxes["spark2"].memory == boxes["spark1"].memory
    assert boxes["spark2"].reserve == 40 * 1000**3
    assert boxes["spark2"].address == "10.0.0.2"


def test_aliases_that_unfold_without_end_are_refused_quickly() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for above, name in zip("abcdefgh", "bcdefghi", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{above}'] * 9)}]\n"
    (line,) = said(bomb)
    assert "*aliases unfold to more than" in line


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: *a}\n", "a: &a {<<: *a}\n", "a: &a {<<: [*a]}\n"])
def test_an_anchor_that_contains_itself_is_refused(text: str) -> None:
    assert any("itself" in line or "its own" in line for line in said(text))


def test_a_problem_in_an_anchor_is_told_once_however_often_it_is_used() -> None:
    text = SMALL.replace("memory: 128GB, reserve: 30GB}", "<<: &size {memory: 1x, reserve: 30GB}}", 1)
    text = text.replace("memory: 128GB, reserve: 30GB}", "<<: *size}", 1)
    (line,) = said(text)
    assert line.startswith("fleet.yaml:3:")


def test_a_secret_in_plain_text_is_refused_without_being_repeated() -> None:
    secret = "sk-verysecret1234567890"
    lines = said(changed("{box: spark1}", f"{{box: spark1, api_keys: {{agents: {secret}}}}}"))
    lines += said(changed("context: 8192", f"context: 8192, environment: {{HF_TOKEN: {secret}}}"))
    lines += said(changed("context: 8192", f"context: 8192, environment: {{OTHER: {secret}}}"))
    lines += said(changed("context: 8192", f"context: 8192, arguments: [--some-flag, {secret}]"))
    lines += said(changed("reserve: 30GB", f"reserve: 30GB, ssh: {{sudo_password: {secret}}}"))
    lines += said(changed("context: 8192", "context: 8192, environment: {DB_PASSWORD: 20251234}"))
    assert len(lines) == 6
    for line in lines:
        assert "a secret does not belong in this file" in line
        assert secret not in line
        assert "20251234" not in line


def test_a_line_that_may_hold_a_secret_is_not_shown_with_a_syntax_error() -> None:
    for text in ('api_keys: "hunter2\n', "DB_PASSWORD: hunter2: x\n", "a: [sk-hunter2hunter2hunter2\nb: 1\n"):
        assert "hunter2" not in "\n".join(said(text))


def test_a_file_that_is_not_there_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no such file") as caught:
        load_fleet(tmp_path / "fleet.yaml")
    assert "fleetctl init" in str(caught.value)


def test_a_directory_in_place_of_the_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is a directory, not a file"):
        load_fleet(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(SMALL)
    path.chmod(0)
    with pytest.raises(SpecError, match="permission denied"):
        load_fleet(path)


@pytest.mark.parametrize("name", ["/proc/self/mem", "a\0b", "x" * 5000])
def test_a_path_that_cannot_be_read_is_told(name: str) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        load_fleet(Path(name))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_file_in_another_unicode_encoding_is_told(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(SMALL.encode(encoding))
    with pytest.raises(SpecError, match="save it as UTF-8"):
        load_fleet(path)


def test_bytes_that_are_not_utf_8_are_told_at_their_place(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(b"fleet: office\nboxes: caf\xe9\n")
    with pytest.raises(SpecError, match=re.escape(f"{path}:2:11: the byte 0xe9 is not UTF-8")):
        load_fleet(path)


def test_a_file_far_too_long_for_a_fleet_is_refused() -> None:
    (line,) = said("# x\n" * 400_000)
    assert "more than a fleet can need" in line


def test_loading_the_example_takes_little_of_the_time_of_a_command() -> None:
    load_fleet(EXAMPLE)
    times = []
    for _ in range(20):
        began = time.process_time()
        load_fleet(EXAMPLE)
        times.append(time.process_time() - began)
    assert min(times) < 0.015
