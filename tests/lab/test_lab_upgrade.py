"""Another build of an engine, while 20 clients go on asking: all copies get it, or none, and fleet.yaml says which."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import pytest
from moving import BOXES, COPY, Moving
from test_lab_rolling import healthy, pids, under_traffic

NEW = "/opt/standin-new"
BROKEN = "/opt/standin-broken"
OLDER = "/opt/standin-older"


def build(moving: Moving, folder: str, version: str, change: str = "true") -> None:
    """A copy of the stand-in as another build of it, on every box; ``change`` is a shell command in its folder."""
    for box in BOXES:
        moving.sh(box, f"rm -rf {folder} && cp -r /opt/standin {folder} && cd {folder} && {change}")
        moving.sh(box, f"sed -i 's/0.32.0+standin/{version}/' {folder}/__init__.py")


def with_builds(moving: Moving, **builds: str) -> str:
    """The lab's file, as it is written, with builds."""
    entries = "".join(f"  {name}: {{venv: {path}}}\n" for name, path in builds.items())
    return moving.text.replace("\nmodels:", f"\nbuilds:\n{entries}\nmodels:", 1)


def changes(before: str, after: str) -> list[str]:
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in lines if line[:1] in "+-"]


def upgrade(moving: Moving, text: str, *words: str) -> tuple[Any, str]:
    """The command, and fleet.yaml afterwards."""
    ran = moving.run("upgrade", "standin", *words, "--yes", text=text)
    return ran, (moving.folder / f"fleet-{moving._files}.yaml").read_text()


def command(moving: Moving, box: str) -> str:
    return moving.sh(box, f"systemctl show -P ExecStart {COPY}")


def test_every_copy_gets_the_new_build_under_traffic_and_the_file_says_so(moving: Moving) -> None:
    moving.be_in("replicas")
    build(moving, NEW, "0.33.0")
    text = with_builds(moving, new=NEW)
    before = pids(moving)
    with under_traffic(moving) as watch:
        ran, written = upgrade(moving, text, "--to", "new")
    assert ran.rc == 0, ran
    assert watch.always_one_up() and all(watch.was_out(box) for box in BOXES)
    assert ran.plan["operation"] == "upgrade" and ran.plan["gap"]["expected"] == 0.0
    assert all(pids(moving)[box] != before[box] for box in BOXES)
    assert all(f"{NEW}/bin/vllm" in command(moving, box) for box in BOXES)
    assert changes(text, written) == ["-     launch: {venv: /opt/standin}", "+     launch: {build: new}"]
    assert healthy(moving, written)
    again, same = upgrade(moving, written, "--to", "new")
    assert (again.rc, again.nothing, same) == (0, True, written)
    back, old = upgrade(moving, written, "--to", "/opt/standin")
    assert (back.rc, changes(text, old)) == (0, []), back
    assert all("/opt/standin/bin/vllm" in command(moving, box) for box in BOXES)


def test_a_build_that_answers_nothing_is_on_no_copy_afterwards_and_not_in_the_file(moving: Moving) -> None:
    moving.be_in("replicas")
    fails = "sed -i 's/health_lies: bool = False/health_lies: bool = True/' settings.py"
    build(moving, BROKEN, "0.34.0", fails)
    text, before = with_builds(moving, broken=BROKEN), moving.picture()
    with under_traffic(moving) as watch:
        ran, written = upgrade(moving, text, "--to", "broken")
    assert (ran.rc, "failed the gate completion" in ran.said) == (6, True), ran
    assert written == text
    assert watch.always_one_up() and not watch.was_out("box2")
    moving.unscathed(before, "replicas")


def test_a_build_that_lacks_a_flag_or_a_value_is_refused_before_anything_is_touched(moving: Moving) -> None:
    moving.be_in("replicas")
    gone = "sed -i 's/--enable-prefix-caching //; s/fp8 fp8_ds_mla/fp8_ds_mla/' flags.py"
    build(moving, OLDER, "0.8.0", gone)
    text = with_builds(moving, older=OLDER)
    text = text.replace("arguments: [", "arguments: [--enable-prefix-cashing, ", 1)
    before, files = pids(moving), moving.picture()
    typed = moving.run("apply", "--yes", text=text)
    for box in BOXES:
        wrong = (
            f"model standin on {box}: vLLM does not know --enable-prefix-cashing; did you mean --enable-prefix-caching?"
        )
        assert (typed.rc, wrong in typed.said) == (5, True), typed
    fitting = text.replace("--enable-prefix-cashing", "--enable-prefix-caching")
    assert moving.run("apply", "--yes", text=fitting).rc == 0
    before, files = pids(moving), moving.picture()
    ran, written = upgrade(moving, fitting, "--to", "older")
    assert (ran.rc, "vLLM does not know --enable-prefix-caching" in ran.said) == (5, True), ran
    assert "does not take --kv-cache-dtype fp8; did you mean fp8_" in ran.said
    assert (written, pids(moving)) == (fitting, before) and moving.same_as(files)
    moving.rollback()


def test_what_is_no_build_or_no_model_is_named_with_the_nearest_one(moving: Moving) -> None:
    moving.be_in("replicas")
    text = with_builds(moving, v33=NEW)
    for words, said in (
        (["standin", "--to", "v34"], "did you mean v33?"),
        (["standing", "--to", "v33"], "did you mean standin?"),
        (["standin", "--to", "ghcr.io/x/vllm:33"], "builds: {NAME: {image: ghcr.io/x/vllm:33"),
    ):
        ran = moving.run("upgrade", *words, "--yes", text=text)
        assert (ran.rc, said in ran.said) == (2, True), ran
    missing = moving.run("upgrade", "standin", "--to", "/opt/nowhere", "--yes", text=text)
    assert (missing.rc, "/opt/nowhere/bin/vllm is not a program there" in missing.said) == (5, True), missing


def test_a_file_with_other_changes_is_applied_first(moving: Moving) -> None:
    moving.be_in("replicas")
    build(moving, NEW, "0.33.0")
    text = with_builds(moving, new=NEW).replace("concurrency: 12}", "concurrency: 11}")
    ran, written = upgrade(moving, text, "--to", "new")
    assert (ran.rc, "`fleetctl apply` brings them there first" in ran.said, written) == (5, True, text), ran


@pytest.fixture(autouse=True)
def _plain(moving: Moving) -> Any:
    """The boxes run the plain file again for whoever comes next."""
    yield
    moving.cutover("replicas")


def test_an_upgrade_that_was_cut_off_is_finished_by_the_same_command(moving: Moving, tmp_path: Path) -> None:
    moving.be_in("replicas")
    build(moving, NEW, "0.33.0")
    text = with_builds(moving, new=NEW)
    with under_traffic(moving) as watch:
        move = moving.start("upgrade", "standin", "--to", "new", "--yes", text=text)
        move.until("roll.start_engine.replicas/standin@box2", "done")
        move.process.kill()
        move.finish()
        cut = (moving.folder / f"fleet-{moving._files}.yaml").read_text()
        other = moving.run("apply", "--yes", text=text)
        assert (other.rc, "`fleetctl upgrade MODEL --to BUILD` finishes it" in other.said) == (8, True), other
        ran, written = upgrade(moving, text, "--to", "new")
    assert (ran.rc, cut) == (0, text), ran
    assert watch.always_one_up()
    assert "launch: {build: new}" in written and healthy(moving, written)
