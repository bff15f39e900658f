"""Keys of clients as they go into the proxy's file: each of its own, and one word."""

from __future__ import annotations

import pytest

from fleetctl.errors import SpecError
from fleetctl.render.release import File
from fleetctl.run.fill import Filler
from fleetctl.spec.secret import Secret

FILE = File(
    path="/etc/fleetctl/proxy/keys",
    content="@secret:one@ one\n@secret:two@ two\n",
    quoting="word",
    secrets={"one": Secret(env="KEY_ONE"), "two": Secret(env="KEY_TWO")},
)


def filled(monkeypatch: pytest.MonkeyPatch, one: str, two: str) -> str:
    monkeypatch.setenv("KEY_ONE", one)
    monkeypatch.setenv("KEY_TWO", two)
    return Filler()(FILE)


def test_each_key_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert filled(monkeypatch, "a", "b") == "a one\nb two\n"


@pytest.mark.parametrize(
    ("two", "said"),
    [
        ("a", "the keys one and two have the same value: give each its own"),
        ("has space", "it has white space in it"),
        ("#hash", "it begins with #"),
    ],
)
def test_what_cannot_be_a_key_is_told_with_the_reason(monkeypatch: pytest.MonkeyPatch, two: str, said: str) -> None:
    with pytest.raises(SpecError) as failure:
        filled(monkeypatch, "a", two)
    assert said in failure.value.message
