"""Several boxes at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from remote_sshd import Sshd, free_port, make_key, needs_sshd

from fleetctl.errors import BoxError, SpecError
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.connection import BoxConnection, OpFailed
from fleetctl.remote.errors import SeveralBoxesError
from fleetctl.spec.fleet import Fleet

pytestmark = needs_sshd


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


def fleet(sshd: Sshd, *names: str, **changed: dict[str, Any]) -> Fleet:
    """As much of a fleet as is needed to connect."""
    return cast(Fleet, SimpleNamespace(boxes={name: sshd.box(**changed.get(name, {})) for name in names}))


def test_results_come_by_name_in_the_order_of_the_fleet(sshd: Sshd) -> None:
    with Boxes.open(fleet(sshd, "c", "a", "b")) as boxes:
        assert list(boxes) == ["c", "a", "b"]
        assert boxes.each(lambda box: box.run("echo", box.name).out) == {"c": "c\n", "a": "a\n", "b": "b\n"}
        assert boxes["a"].name == "a"


def test_only_the_boxes_named_are_connected(sshd: Sshd) -> None:
    with Boxes.open(fleet(sshd, "a", "b", "c"), ["c", "a"]) as boxes:
        assert list(boxes) == ["a", "c"]


def test_a_name_that_is_no_boxs_is_told(sshd: Sshd) -> None:
    with pytest.raises(SpecError, match="no box d in the fleet"):
        Boxes.open(fleet(sshd, "a", "b", "c"), ["a", "d"])


def test_boxes_work_at_the_same_time(sshd: Sshd) -> None:
    meet = threading.Barrier(3, timeout=30)
    with Boxes.open(fleet(sshd, "a", "b", "c")) as boxes:
        boxes.each(lambda box: meet.wait())


def test_one_failure_is_raised_as_it_is_and_several_together(sshd: Sshd) -> None:
    def fail(box: BoxConnection) -> None:
        if box.name != "b":
            box.run("false")

    with (
        Boxes.open(fleet(sshd, "a", "b")) as boxes,
        pytest.raises(OpFailed, match="a: false ended with status 1"),
    ):
        boxes.each(fail)
    with Boxes.open(fleet(sshd, "a", "b", "c")) as boxes, pytest.raises(SeveralBoxesError) as caught:
        boxes.each(fail)
    assert list(caught.value.errors) == ["a", "c"]
    assert str(caught.value) == "a: false ended with status 1\nc: false ended with status 1"
    assert caught.value.exit_code == BoxError.exit_code


def test_a_mistake_in_the_program_is_not_dressed_up(sshd: Sshd) -> None:
    with Boxes.open(fleet(sshd, "a")) as boxes, pytest.raises(ZeroDivisionError):
        boxes.each(lambda box: 1 // 0)


def test_every_box_that_cannot_be_reached_is_named_and_nothing_stays_connected(sshd: Sshd) -> None:
    bad: dict[str, dict[str, Any]] = {"b": {"port": free_port()}, "c": {"key": "/nonexistent"}}
    with pytest.raises(SeveralBoxesError) as caught:
        Boxes.open(fleet(sshd, "a", "b", "c", **bad))
    assert "b: nothing listens" in str(caught.value) and "c: " in str(caught.value)
    end = time.monotonic() + 30
    while sshd.sessions() and time.monotonic() < end:
        time.sleep(0.05)
    assert not sshd.sessions()


def test_a_command_that_goes_on_without_some_gets_those_it_can_have_and_waits_for_the_others_as_briefly_as_it_says(
    sshd: Sshd,
) -> None:
    silent = {"host": "192.0.2.1", "port": 22}  # an address of documentation: nobody answers, or there is no way there
    began = time.monotonic()
    boxes, failed = Boxes.open_some(fleet(sshd, "a", "b", "c", b=silent), reach=0.5)
    took = time.monotonic() - began
    with boxes:
        assert (list(boxes), list(failed)) == (["a", "c"], ["b"])
        assert boxes.each(lambda box: box.run("echo", box.name).out) == {"a": "a\n", "c": "c\n"}
    assert isinstance(failed["b"], BoxError) and took < 10, failed


def test_questions_are_asked_in_the_callers_thread(sshd: Sshd, tmp_path: Path) -> None:
    key = make_key(tmp_path / "key", passphrase="open")
    with sshd.authorized.open("a") as file:
        file.write(Path(f"{key}.pub").read_text())
    askers: list[threading.Thread] = []

    def ask(path: Path) -> str:
        askers.append(threading.current_thread())
        return "open"

    both: dict[str, dict[str, Any]] = {name: {"key": str(key)} for name in ("a", "b")}
    Boxes.open(fleet(sshd, "a", "b", **both), ask_passphrase=ask).close()
    assert askers == [threading.main_thread()] * 2


def test_an_operator_who_does_not_want_to_answer_ends_it(sshd: Sshd, tmp_path: Path) -> None:
    key = make_key(tmp_path / "key", passphrase="open")

    def ask(path: Path) -> str:
        raise KeyboardInterrupt

    both: dict[str, dict[str, Any]] = {name: {"key": str(key)} for name in ("a", "b")}
    with pytest.raises(KeyboardInterrupt):
        Boxes.open(fleet(sshd, "a", "b", **both), ask_passphrase=ask)


def test_ctrl_c_cancels_what_runs_on_every_box(sshd: Sshd) -> None:
    ends: list[str] = []

    def wait(box: BoxConnection) -> None:
        try:
            box.run("sleep", "600", timeout=600)
        except OpFailed as error:
            ends.append(error.kind)
            raise

    with Boxes.open(fleet(sshd, "a", "b")) as boxes:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            boxes.each(wait)
    assert ends == ["Cancelled", "Cancelled"]
