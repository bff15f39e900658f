"""LoRA adapters reach every copy while it serves, or none; they survive whatever starts an engine again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loras import FOLDER, Loras
from moving import BOXES, COPY, Moving, eventually


@pytest.fixture
def loras(moving: Moving, tmp_path: Path) -> Iterator[Loras]:
    """The fleet as two copies of a model that takes adapters, without any."""
    fleet = Loras(moving, tmp_path)
    fleet.be_in("replicas")
    fleet.remove_all()
    yield fleet
    for box in BOXES:
        moving.control(box)
    fleet.remove_all()


def test_an_adapter_reaches_every_copy_without_a_restart_and_goes_again(loras: Loras) -> None:
    moving = loras.moving
    pids = {box: moving.pid(box, COPY) for box in BOXES}
    with moving.steady_traffic() as traffic:
        ran = loras.push(loras.make("contracts"), words=("--model", "standin"))
        assert all(loras.answers("contracts") for _ in range(4))
        listed = [card["id"] for card in loras_models(loras)]
        assert listed == ["standin", "contracts"]
        again = loras.push(loras.make("contracts"))
        removed = loras.run("lora", "remove", "contracts", "--yes")
    assert (traffic.failed, len(traffic.statuses) > 3) == ([], True)
    assert "load.load_adapters.replicas/standin@box2" in ran.steps(), ran
    assert again.nothing, again
    assert removed.rc == 0, removed
    assert {box: moving.pid(box, COPY) for box in BOXES} == pids
    assert loras.on_engines() == {"box1": [], "box2": []}
    assert loras.ask("contracts").status_code == 404
    for box in BOXES:
        left = moving.sh(
            box, f"find {FOLDER} -name '*.safetensors'; ls /var/lib/fleetctl/moves/*/prior 2>/dev/null; true"
        )
        assert left == ""
    told = moving.run("history", text=loras.text)
    operations = [event["operation"] for event in told.events if event["type"] == "change"]
    assert {"lora push", "lora remove"} <= set(operations), told
    assert moving.status(loras.text)["exit"] == 0


def loras_models(loras: Loras) -> list[dict[str, Any]]:
    import httpx

    found: list[dict[str, Any]] = httpx.get(f"{loras.moving.proxy}/v1/models", timeout=60, trust_env=False).json()[
        "data"
    ]
    return found


def test_ten_at_once_from_a_folder_of_folders(loras: Loras) -> None:
    for number in range(10):
        loras.make(f"night-{number}", seed=number)
    loras.push(loras.folder / "adapters")
    wanted = [f"night-{number}" for number in range(10)]
    assert loras.on_engines() == {"box1": wanted, "box2": wanted}
    assert all(loras.answers(name) for name in wanted)
    assert loras.names() == wanted


def test_every_way_to_start_an_engine_brings_them_back(loras: Loras) -> None:
    moving = loras.moving
    loras.push(loras.make("a"), loras.make("b", seed=2))
    both = {"box1": ["a", "b"], "box2": ["a", "b"]}

    moving.sh("box1", f"systemctl restart {COPY}")
    assert loras.on_engines() == both, "systemd alone"
    pid = moving.pid("box2", COPY)
    moving.sh("box2", f"kill -9 {pid}")
    eventually(lambda: moving.pid("box2", COPY) not in (pid, "0") and loras.on_engines().get("box2") == ["a", "b"])

    ran = loras.run("restart", "--yes")
    assert ran.rc == 0, ran
    assert "roll.load_adapters.replicas/standin@box1" in ran.steps(), ran
    assert loras.on_engines() == both

    loras.be_in("split")
    assert loras.on_engines() == {"box1": ["a", "b"]}
    assert loras.answers("a")
    back = moving.run("rollback", "--yes", text=loras.text)
    assert back.rc == 0, back
    assert loras.on_engines() == both

    moving.sh("box2", "systemctl --no-block reboot")
    eventually(lambda: moving.status(loras.text)["exit"] == 0 and loras.on_engines() == both)
    assert all(loras.answers(name) for name in ("a", "b") for _ in range(3))
    assert loras.seen()["problems"] == []


def test_where_one_copy_fails_no_copy_has_it(loras: Loras) -> None:
    loras.push(loras.make("before"))
    was = loras.state()
    loras.moving.control("box2", lora_fails=True)
    with loras.moving.steady_traffic() as traffic:
        ran = loras.run("lora", "push", str(loras.make("new", seed=3)), "--yes")
    assert (ran.rc, traffic.failed) == (6, []), ran
    assert "replicas/standin@box2" in ran.said and "out of memory" in ran.said, ran.said
    assert loras.on_engines() == {"box1": ["before"], "box2": ["before"]}
    assert loras.state() == was
    assert loras.ask("new").status_code == 404
    assert loras.moving.status(loras.text)["unfinished"] is None


def _bad(loras: Loras) -> list[tuple[Path, str, tuple[str, ...]]]:
    cut, bare, pickled, empty = (loras.make(name) for name in ("cut", "bare", "pickled", "no-config"))
    whole = (cut / "adapter_model.safetensors").read_bytes()
    (cut / "adapter_model.safetensors").write_bytes(whole[:5000])
    (bare / "adapter_model.safetensors").unlink()
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    (empty / "adapter_config.json").write_text("{")
    return [
        (cut, "cut off or damaged", ()),
        (bare, "no adapter_model.safetensors", ()),
        (pickled, "pickle", ()),
        (empty, "not JSON", ()),
        (loras.make("rank", rank=32), "its rank is 32, and the model takes 16", ()),
        (loras.make("wide", hidden=256), "a model of another size", ()),
        (loras.make("deep", layers=3), "it is for another model", ()),
        (loras.make("modules", modules=("q_proj", "foo_proj")), "foo_proj: it is for another model", ()),
        (loras.make("lying", r=4), "do not have the rank", ()),
        (loras.make("dora", use_dora=True), "does not load DoRA", ()),
        (loras.make("saved", modules_to_save=["lm_head"]), "modules_to_save", ()),
        (loras.make("named"), "model standin", ("--name", "standin")),
        (loras.make("path"), "no name for one", ("--name", "../../etc")),
        (loras.make("there-already", seed=9), "there is one of this name with other content", ("--name", "good")),
    ]


def test_a_bad_adapter_is_refused_before_any_copy_is_touched(loras: Loras) -> None:
    loras.push(loras.make("good"))
    was, moves = loras.state(), loras.moving.moves()
    for folder, words, more in _bad(loras):
        ran = loras.run("lora", "push", str(folder), *more, "--yes")
        assert (ran.rc, words in ran.said) == (5, True), (folder.name, ran)
    together = loras.run("lora", "push", str(loras.make("fine", seed=4)), str(loras.make("rank", rank=32)), "--yes")
    assert together.rc == 5, together
    assert (loras.state(), loras.moving.moves()) == (was, moves)
    assert loras.on_engines() == {"box1": ["good"], "box2": ["good"]}
    for words, status in ((("push", "/nowhere"), 2), (("remove", "godo"), 2), (("push", str(loras.folder)), 2)):
        ran = loras.run("lora", *words, "--yes")
        assert ran.rc == status, ran
    assert "did you mean good" in loras.run("lora", "remove", "godo", "--yes").said


def test_a_push_that_was_cut_off_is_finished_or_taken_back(loras: Loras) -> None:
    moving, folder = loras.moving, loras.make("x")
    for finish in (True, False):
        run = moving.start("lora", "push", str(folder), "--yes", text=loras.text)
        run.until("note.note_adapters.box2", "done")
        run.process.kill()
        run.finish()
        seen = moving.status(loras.text)
        assert (seen["exit"], seen["unfinished"]["operation"]) == (8, "lora push"), seen
        if finish:
            ran = loras.run("lora", "push", str(folder), "--yes")
            assert ran.rc == 0, ran
            assert loras.on_engines() == {"box1": ["x"], "box2": ["x"]}
            loras.remove_all()
        else:
            ran = loras.run("rollback", "--yes")
            assert ran.rc == 0, ran
            assert loras.on_engines() == {"box1": [], "box2": []}
            assert (loras.names(), loras.seen()["exit"]) == ([], 0)
            assert moving.sh("box2", f"find {FOLDER} -name '*.safetensors'") == ""


def test_a_box_that_lost_them_is_found_and_gets_them_at_the_next_apply(loras: Loras) -> None:
    loras.push(loras.make("a"), loras.make("b", seed=2))
    loras.moving.sh("box2", f"rm -r {FOLDER}; systemctl restart {COPY}")
    seen = loras.seen()
    assert seen["exit"] == 9 and any("box2 lacks adapters" in one for one in seen["problems"]), seen
    assert any("box2" in one and "adapters" in one for one in loras.moving.status(loras.text)["problems"])
    found = loras.run("doctor")
    codes = {event["code"] for event in found.events if event["type"] == "finding"}
    assert {"A01"} <= codes, found
    ran = loras.run("apply", "--yes")
    assert ran.rc == 0, ran
    assert loras.on_engines() == {"box1": ["a", "b"], "box2": ["a", "b"]}
    assert (loras.seen()["problems"], loras.index("box1")) == ([], loras.index("box2"))
    assert loras.moving.status(loras.text)["exit"] == 0


def test_a_file_that_was_cut_keeps_no_engine_from_starting(loras: Loras) -> None:
    loras.push(loras.make("a"), loras.make("b", seed=2))
    loras.moving.sh("box2", f"truncate -s 100 {FOLDER}/standin/a/*/adapter_model.safetensors; systemctl restart {COPY}")
    assert loras.on_engines() == {"box1": ["a", "b"], "box2": ["b"]}
    assert loras.run("apply", "--yes").rc == 0
    assert loras.on_engines() == {"box1": ["a", "b"], "box2": ["a", "b"]}


def test_clients_load_nothing_through_the_proxy(loras: Loras) -> None:
    loras.push(loras.make("a"))
    body = {"lora_name": "evil", "lora_path": f"{FOLDER}/standin/a", "name": "evil", "src": "/etc"}
    plain = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters")
    for path in (
        *plain,
        "/v1/load%5Flora_adapter",
        "//v1/load_lora_adapter",
        "/v1/load_lora_adapte%72",
        "/%61dapters/a",
    ):
        assert loras.ask("standin", path, **body).status_code == 404, path
    assert loras.on_engines() == {"box1": ["a"], "box2": ["a"]}
