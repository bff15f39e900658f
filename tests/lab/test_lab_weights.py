"""Weights between real boxes: sent, cut off, damaged, refused for want of room, asked for by a cutover, removed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import COMMIT, etag_of, hub_of
from moving import BOXES, Moving, Ran, eventually

from fleetctl.onbox.partsums import PART

FOLDER = "/srv/models/tiny"
SIZE = 3 * PART
WEIGHTS = "model-00001.safetensors"


def with_weights(moving: Moving, folder: str = FOLDER) -> str:
    """fleet.yaml of the lab, whose model is a folder on the boxes."""

    def change(document: dict[str, Any]) -> None:
        document["models"]["standin"]["weights"] = folder

    return moving.changed(change)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one safetensors file of three parts and a little more."""
    folder = tmp_path_factory.mktemp("weights") / "tiny"
    folder.mkdir()
    head = json.dumps({"w": {"dtype": "U8", "shape": [SIZE], "data_offsets": [0, SIZE]}}).encode()
    (folder / WEIGHTS).write_bytes(len(head).to_bytes(8, "little") + head + os.urandom(SIZE))
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def boxes(moving: Moving) -> Iterator[Moving]:
    """The fleet, with no weights on any box before and after."""
    yield moving
    for box in BOXES:
        moving.sh(box, "rm -rf /srv/models /var/lib/fleetctl/weights")


def pulled(boxes: Moving, model: Path, folder: str = FOLDER) -> str:
    """The first box has the model, from a folder of this machine."""
    text = with_weights(boxes, folder)
    ran = boxes.run("weights", "pull", "standin", "--from", str(model), "--on", "box1", "--yes", text=text)
    assert ran.rc == 0, ran
    return text


def test_a_model_of_a_hub_comes_into_the_cache_that_the_engine_reads(
    boxes: Moving, model: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "token"
    secret.write_text("hf_very_secret")

    def change(document: dict[str, Any]) -> None:
        one = document["models"]["standin"]
        one["weights"], one["revision"] = "office/tiny", COMMIT
        more = {"HF_HOME": "/srv/models/hub", "HF_ENDPOINT": hub.address, "HF_TOKEN": {"file": str(secret)}}
        one["environment"] = {**one["environment"], **more}

    with hub_of(model) as hub:
        text = boxes.changed(change)
        env = {"HF_HOME": str(tmp_path / "home")}
        ran = boxes.run("weights", "pull", "standin", "--on", "box1", "--yes", text=text, env=env)
        assert ran.rc == 0, ran
        assert "this machine fetches office/tiny" in ran.plan["steps"][0]["summary"], (
            "the boxes have no huggingface_hub"
        )
        assert "Bearer hf_very_secret" in hub.tokens
        assert "very_secret" not in boxes.journal() + json.dumps(ran.events)
    ran = boxes.run("weights", "push", "--yes", text=text)
    assert ran.rc == 0, ran
    snapshot = f"/srv/models/hub/hub/models--office--tiny/snapshots/{COMMIT}"
    for box in BOXES:
        assert boxes.sh(box, f"readlink {snapshot}/{WEIGHTS}").startswith("../../blobs/")
        assert boxes.sh(box, f"sha256sum < {snapshot}/{WEIGHTS}") == boxes.sh(
            "box1", f"sha256sum < {snapshot}/{WEIGHTS}"
        )
        assert boxes.sh(box, f"sha256sum < {snapshot}/{WEIGHTS}").split()[0] == etag_of(model / WEIGHTS)
    assert weights_status(boxes, text) == (0, {"box1": "proven", "box2": "proven"})
    named = f"office/tiny@{COMMIT[:8]}"
    ran = boxes.run("weights", "prune", named, "--yes", text=text)
    assert ran.rc == 5 and "is needed by layout" in ran.said, ran
    ran = boxes.run("weights", "prune", named, "--needed", "--yes", text=text)
    assert ran.rc == 0 and boxes.files("box2", "/srv/models") == [], ran


def sent(ran: Ran) -> dict[str, Any]:
    """What the step that sends to the second box told."""
    (event,) = [e for e in ran.events if e["type"] == "step" and ".send_weights." in e["step"] and e["state"] == "done"]
    return dict(event["result"])


def sums(boxes: Moving, box: str) -> str:
    return boxes.sh(box, f"cd {FOLDER} && sha256sum * && stat -c '%a %U %G %n' . *")


def weights_status(boxes: Moving, text: str, *words: str) -> tuple[int, dict[str, str]]:
    """Exit status, and box → state."""
    ran = boxes.run("weights", *(words or ("status",)), text=text)
    told = next(e for e in ran.events if e["type"] == "weights")
    return ran.rc, {place["box"]: place["state"] for place in told["places"]}


def listening(boxes: Moving) -> dict[str, str]:
    return {box: boxes.sh(box, "ss -ltnH | awk '{print $4}' | sort") for box in BOXES}


def test_weights_come_from_here_to_one_box_and_from_there_to_the_other(boxes: Moving, model: Path) -> None:
    before = listening(boxes)
    text = pulled(boxes, model)
    assert weights_status(boxes, text) == (9, {"box1": "proven", "box2": "missing"})
    ran = boxes.run("weights", "push", "standin", "--yes", text=text)
    assert ran.rc == 0, ran
    whole = sum(path.stat().st_size for path in model.iterdir())
    assert sent(ran)["received"] == sent(ran)["sent"] == whole
    assert sums(boxes, "box1") == sums(boxes, "box2")
    assert weights_status(boxes, text) == (0, {"box1": "proven", "box2": "proven"})
    assert boxes.sh("box2", "ls -A /srv/models").split() == ["tiny"]
    assert listening(boxes) == before
    again = boxes.run("weights", "push", "--yes", text=text)
    assert again.rc == 0 and again.nothing
    assert boxes.sh("box2", "ls /var/lib/fleetctl/moving.json 2>/dev/null") == "", "guards go on with their work"


@pytest.mark.parametrize("closed", [False, True], ids=["finished", "closed by a rollback"])
def test_a_push_that_was_killed_is_known_and_goes_on_from_where_it_was(
    boxes: Moving, model: Path, closed: bool
) -> None:
    text = pulled(boxes, model)
    running = boxes.start("weights", "push", "standin", "--yes", "--limit", "20MB/s", text=text)
    came = 0
    while came < PART + PART // 2:
        event = running._next()
        assert event is not None, running.finish()
        seen = event.get("seen", {})
        came = seen["bytes"] if seen.get("doing") == "receiving" else came
    claim = json.loads(boxes.sh("box2", "cat /run/fleetctl-claim.json"))
    assert claim["aside"] and boxes.sh("box2", "ls /var/lib/fleetctl/moving.json 2>/dev/null") == "", "guards go on"
    running.process.kill()
    running.finish()
    staged = "du -s --block-size=1 /srv/models/.tiny.fleetctl-arriving/files 2>/dev/null | cut -f1"
    eventually(lambda: boxes.sh("box1", "pgrep -cf 'python3 -[I]BS' || true").strip() == "0")
    there = int(boxes.sh("box2", staged))
    assert there > PART and boxes.sh("box2", f"ls {FOLDER} 2>/dev/null") == ""
    seen = boxes.status(text)
    assert seen["exit"] == 8 and seen["unfinished"]["operation"] == "weights push", seen
    if closed:
        assert boxes.run("rollback", "--yes", text=text).rc == 0
        assert int(boxes.sh("box2", staged)) == there, "what had arrived stays"
    ran = boxes.run("weights", "push", "standin", "--yes", text=text)
    assert ran.rc == 0, ran
    whole = sum(path.stat().st_size for path in model.iterdir())
    assert sent(ran)["received"] <= whole - came + PART
    assert sums(boxes, "box1") == sums(boxes, "box2")
    assert boxes.status(text)["unfinished"] is None


def test_one_wrong_byte_is_found_and_mended_with_one_part(boxes: Moving, model: Path) -> None:
    text = pulled(boxes, model)
    assert boxes.run("weights", "push", "--yes", text=text).rc == 0
    path = f"{FOLDER}/{WEIGHTS}"
    flip = f"import os; f = open('{path}', 'r+b'); f.seek({PART + 5}); b = f.read(1)[0]; f.seek({PART + 5}); "
    flip += "f.write(bytes([b ^ 1]))"
    boxes.sh("box2", f't=$(stat -c %y {path}); python3 -c "{flip}"; touch -d "$t" {path}')
    assert weights_status(boxes, text, "verify")[0] == 0, "nothing tells, short of reading it"
    assert weights_status(boxes, text, "verify", "--full") == (9, {"box1": "proven", "box2": "differs"})
    ran = boxes.run("weights", "verify", "--repair", "--yes", text=text)
    assert ran.rc == 0, ran
    assert sent(ran)["received"] == PART
    assert weights_status(boxes, text, "verify", "--full")[0] == 0
    assert sums(boxes, "box1") == sums(boxes, "box2")


def test_nothing_is_sent_where_a_disk_has_no_room(boxes: Moving, model: Path) -> None:
    text = pulled(boxes, model)
    boxes.sh("box2", "mkdir -p /srv/models")
    boxes.lab.limit_disk("box2", "/srv/models", 20 * 2**20)
    try:
        ran = boxes.run("weights", "push", "--yes", text=text)
        assert ran.rc == 5 and re.search(r"box2: .*needs 48 MiB on the disk and \d+ MiB are free", ran.said), ran
        assert boxes.sh("box2", "ls -A /srv/models").split() == []
    finally:
        boxes.lab.unlimit_disk("box2", "/srv/models")


def test_a_cutover_does_not_start_before_weights_are_proven_on_every_box(boxes: Moving, model: Path) -> None:
    boxes.be_in("split")
    text = pulled(boxes, model)
    before = boxes.picture()
    ran = boxes.run("cutover", "--to", "replicas", "--yes", text=text)
    assert ran.rc == 5 and "`fleetctl weights push standin` brings them" in ran.said, ran
    assert boxes.run("weights", "push", "--yes", text=text).rc == 0
    boxes.sh("box2", f"printf x >> {FOLDER}/config.json")
    ran = boxes.run("cutover", "--to", "replicas", "--yes", text=text)
    assert ran.rc == 6 and "config.json differs in 1 part" in ran.said and "fleetctl weights push standin" in ran.said
    assert not [step for step in ran.steps("begin") if not step.startswith("prepare")], (
        "nothing that serves was touched"
    )
    boxes.unscathed(before, "split")
    assert boxes.run("weights", "push", "--from", "box1", "--yes", text=text).rc == 0
    ran = boxes.cutover("replicas", text)
    proofs = [e for e in ran.events if e["type"] == "step" and "verify_weights" in e["step"] and e["state"] == "done"]
    assert [one["result"]["standin"]["read"] for one in proofs] == [False, False], "what was not touched is not read"
    refused = boxes.run("weights", "prune", FOLDER, "--yes", text=text)
    assert refused.rc == 5 and "is needed by layout" in refused.said, refused
    boxes.rollback()


def test_what_nothing_uses_is_removed_and_only_what_fleetctl_put_there(boxes: Moving, model: Path) -> None:
    spare = "/srv/models/spare"  # of which no generation that is kept knows
    text = pulled(boxes, model, spare)
    assert boxes.run("weights", "push", "--yes", text=text).rc == 0
    for box in BOXES:
        boxes.sh(box, f"mkdir -p /srv/models/theirs && cp {spare}/config.json /srv/models/theirs")
    assert boxes.run("weights", "prune", "--yes", text=text).nothing, "a layout needs them"
    ran = boxes.run("weights", "prune", "--yes")
    assert ran.rc == 0 and [step["kind"] for step in ran.plan["steps"]].count("delete_weights") == 2, ran
    for box in BOXES:
        assert boxes.sh(box, "ls -A /srv/models").split() == ["theirs"]
        assert boxes.sh(box, "ls -A /var/lib/fleetctl/weights").split() == []
