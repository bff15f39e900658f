"""Secrets go into files at the last moment, quoted as the file needs it, and are read once."""

from pathlib import Path

import pytest

from fleetctl.errors import SpecError
from fleetctl.render.release import File
from fleetctl.run.fill import Filler
from fleetctl.spec.secret import Secret


def test_a_secret_of_each_kind_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_A", "from-env")
    (tmp_path / "key").write_text("from-file\n")
    file = File(
        path="/x",
        content="@secret:a@ @secret:b@ @secret:c@",
        secrets={
            "a": Secret(env="KEY_A"),
            "b": Secret(file=str(tmp_path / "key")),
            "c": Secret(command=("printf", "from-command")),
        },
    )
    assert Filler()(file) == "from-env from-file from-command"


def test_a_value_for_an_environment_file_is_quoted_for_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_A", 'a"b\\c$d`e f#g')
    file = File(path="/x", content="K=@secret:a@\n", secrets={"a": Secret(env="KEY_A")}, quoting="environment")
    assert Filler()(file) == 'K="a\\"b\\\\c\\$d\\`e f#g"\n'


def test_a_command_runs_once_however_many_files_need_it(tmp_path: Path) -> None:
    count = tmp_path / "count"
    secret = Secret(command=("sh", "-c", f"echo x >> {count}; echo value"))
    fill = Filler()
    for number in range(3):
        assert fill(File(path=f"/{number}", content="@secret:s@", secrets={"s": secret})) == "value"
    assert count.read_text() == "x\n"


@pytest.mark.parametrize("value", ["two words", "#comment", "tab\there", ""])
def test_a_key_that_would_be_read_as_something_else_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_A", value)
    file = File(path="/keys", content="@secret:a@ a\n", secrets={"a": Secret(env="KEY_A")}, quoting="word")
    with pytest.raises(SpecError) as refused:
        Filler()(file)
    assert "KEY_A" in str(refused.value)
    if value:
        assert value not in str(refused.value), "a secret is never shown"


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        (Secret(env="NOT_SET_ANYWHERE"), "NOT_SET_ANYWHERE is not set"),
        (Secret(file="/no/such/file"), "/no/such/file"),
        (Secret(command=("false",)), "ended with status 1"),
        (Secret(command=("no-such-program-anywhere",)), "did not run"),
        (Secret(command=("printf", "two\\nlines")), "line break"),
        (Secret(command=("true",)), "is empty"),
        (Secret(command=("printf", "\\377")), "not UTF-8"),
    ],
)
def test_a_secret_that_is_not_to_be_had_says_where_it_should_come_from(secret: Secret, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        Filler()(File(path="/x", content="@secret:s@", secrets={"s": secret}))
    assert said in str(refused.value)
