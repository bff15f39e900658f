"""Container images on a box: what podman and docker say of them, sent from one to the other, and proven."""

from __future__ import annotations

import hashlib
import io
import json
import os
import queue
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

from fleetctl.onbox import builds, containers, images
from fleetctl.onbox.imageproof import judged
from fleetctl.onbox.imagestream import image_receive, image_send
from fleetctl.onbox.main import Call, OpError

ID = "3093f2340e70b805bac7e786fbb24809ca67b355ca9c883f4a3f805999fcebb0"
# As recorded from Podman 4.3.1 and Docker 20.10.24, cut to what is read.
PODMAN = [{"Id": ID, "RepoTags": ["localhost/standin:1"], "Size": 35114100}]
DOCKER = [{"Id": f"sha256:{ID}", "RepoTags": ["localhost/standin:1"], "Size": 34629210}]
NONE_OF = {
    "podman": "Error: inspecting object: localhost/nix:1: image not known",
    "docker": "Error: No such image: localhost/nix:1",
}
DAEMON = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"
VERSIONS = {"podman": "podman version 4.3.1", "docker": "Docker version 20.10.24+dfsg1, build 297e128"}


def call() -> Call:
    return Call(1, lambda message: None)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a program of a name that says what it is told to, for its first words."""

    def make(name: str, script: str, version: str | None = None) -> str:
        path = tmp_path / name
        path.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "{version or VERSIONS[name]}"; exit; }}\n{script}\n'
        )
        path.chmod(0o755)
        return str(path)

    monkeypatch.setattr("fleetctl.onbox.main.PATH", f"{tmp_path}:{os.environ['PATH']}")
    return make


@pytest.mark.parametrize(("name", "told"), [("podman", PODMAN), ("docker", DOCKER)])
def test_an_image_has_the_same_id_whoever_tells_it(engine: Any, name: str, told: Any, tmp_path: Path) -> None:
    (tmp_path / "told").write_text(json.dumps(told))
    engine(name, f"cat {tmp_path}/told")
    assert builds.image_facts(call(), [[name, "localhost/standin:1"]]) == {
        "localhost/standin:1": {"id": f"sha256:{ID}", "size": told[0]["Size"]}
    }
    known = builds.image_build(call(), name, "localhost/standin:1")
    assert known == {"version": "localhost/standin:1", "digest": f"sha256:{ID}"}


@pytest.mark.parametrize("name", ["podman", "docker"])
def test_an_image_that_is_not_there_is_no_problem(engine: Any, name: str) -> None:
    engine(name, f'echo "[]"; echo "{NONE_OF[name]}" >&2; exit 1')
    assert builds.image_facts(call(), [[name, "localhost/nix:1"]]) == {"localhost/nix:1": {}}


@pytest.mark.parametrize(
    ("name", "script", "version", "problem"),
    [
        ("docker", f'echo "{DAEMON}" >&2; exit 1', None, "docker cannot tell of images: Cannot connect to the Docker"),
        ("podman", "echo '[]'", "podman version 3.4.4", "podman version 3.4.4 is too old for engines: 4.0 or later"),
        ("podman", "echo no JSON", None, "podman tells of image x what is no JSON"),
    ],
)
def test_what_keeps_a_box_from_running_containers_is_told(
    engine: Any, name: str, script: str, version: str | None, problem: str
) -> None:
    engine(name, script, version)
    (told,) = builds.image_facts(call(), [[name, "x"]]).values()
    assert told["problem"].startswith(problem)


def test_a_box_without_the_program_is_told() -> None:
    assert builds.image_facts(call(), [["nopodman", "x"]]) == {"x": {"problem": "no program nopodman here"}}


def test_rooms_are_where_an_image_arrives_and_where_it_lies(engine: Any, tmp_path: Path) -> None:
    engine("podman", f'[ "$1" = info ] && echo {tmp_path}/store || {{ echo image not known >&2; exit 1; }}')
    (told,) = images.images_look(call(), [["podman", "x"]])
    assert [room["path"] for room in told["rooms"]] == [f"{tmp_path}/store", "/var/tmp"]
    assert "id" not in told
    assert all(room["free"] > 0 for room in told["rooms"])


KEY = "k" * 64


def sent(program: str, loader: str, *, key: str = KEY, listens: str = "sender", limit: float | None = None) -> Any:
    """Send an image over the loopback; what both ends returned or raised. ``listens`` says which end is called."""
    ports: queue.Queue[int] = queue.Queue()

    def heard(message: dict[str, Any]) -> None:
        if "port" in message["event"]:
            ports.put(message["event"]["port"])

    results: dict[str, Any] = {}

    def run(name: str, function: Any, **args: Any) -> None:
        try:
            results[name] = function(Call(1, heard), own="127.0.0.1", peer="127.0.0.1", **args)
        except OpError as error:
            results[name] = str(error)

    send = {"engine": program, "identity": f"sha256:{ID}", "key": KEY, "limit": limit, "wait": 5.0}
    sender = threading.Thread(target=run, args=("sender", image_send), kwargs=send)
    sender.start()
    receive = {"engine": loader, "key": key, "total": 1000, "wait": 5.0}
    run("receiver", image_receive, port=ports.get(timeout=10), **receive)
    sender.join(10)
    return results


def test_an_image_is_saved_on_one_box_and_loaded_on_the_other(engine: Any, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "image").write_bytes(content)
    program = engine("podman", f'[ "$1" = save ] && exec cat {tmp_path}/image; exec cat > {tmp_path}/arrived')
    told = sent(program, program)
    assert told == {"sender": {"sent": 3_000_000}, "receiver": {"reached": True, "received": 3_000_000}}
    assert (tmp_path / "arrived").read_bytes() == content


def test_the_end_that_fails_by_itself_says_why(engine: Any, tmp_path: Path) -> None:
    good = engine("podman", f'[ "$1" = save ] && exec head -c 3000000 /dev/zero; exec cat > {tmp_path}/arrived')
    bad = engine("docker", 'echo "no space left on device" >&2; exit 1')
    assert sent(bad, good)["sender"] == f"{bad} cannot save sha256:3093f2340e70: no space left on device"
    assert sent(good, bad)["receiver"] == f"{bad} cannot load what arrived: no space left on device"


def test_who_does_not_know_the_key_gets_nothing(engine: Any, tmp_path: Path) -> None:
    program = engine("podman", f'[ "$1" = save ] && exec head -c 3000 /dev/zero; exec cat > {tmp_path}/arrived')
    told = sent(program, program, key="x" * 64)
    assert "did not prove" in told["receiver"]
    assert "did not call" in told["sender"]
    assert not (tmp_path / "arrived").exists()


def test_a_peer_that_cannot_be_called_is_no_failure_for_there_is_another_way() -> None:
    told = image_receive(call(), "podman", "127.0.0.1", "127.0.0.1", 1, KEY, 1)
    assert told == {"reached": False, "why": "Connection refused"}


def archive(layers: list[bytes], *, spoil: bool = False) -> tuple[str, dict[str, str], dict[str, bytes]]:
    """An image's archive as `save` writes it: its ID, the checksum of each file, and the small ones."""
    sums = [hashlib.sha256(layer).hexdigest() for layer in layers]
    config = json.dumps({"rootfs": {"type": "layers", "diff_ids": [f"sha256:{one}" for one in sums]}}).encode()
    identity = hashlib.sha256(config).hexdigest()
    files = {f"{one}.tar": layer for one, layer in zip(sums, layers, strict=True)} | {f"{identity}.json": config}
    if spoil:
        files[f"{sums[0]}.tar"] += b"!"
    files["manifest.json"] = json.dumps(
        [{"Config": f"{identity}.json", "RepoTags": None, "Layers": [f"{one}.tar" for one in sums]}]
    ).encode()
    return f"sha256:{identity}", {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}, files


def test_an_image_is_proven_layer_by_layer() -> None:
    identity, sums, small = archive([b"one", b"two"])
    assert judged(identity, sums, small) == {"layers": 2, "wrong": []}


def test_a_layer_that_is_not_what_it_was_is_named() -> None:
    identity, sums, small = archive([b"one", b"two"], spoil=True)
    (wrong,) = judged(identity, sums, small)["wrong"]
    assert wrong.startswith("layer 1 is not what it was")


def test_layers_that_are_packed_are_proven_by_their_own_names() -> None:
    packed = hashlib.sha256(b"packed").hexdigest()
    config = json.dumps({"rootfs": {"diff_ids": [f"sha256:{'0' * 64}"]}}).encode()
    listing = json.dumps([{"Config": "blobs/config", "Layers": [f"blobs/sha256/{packed}"]}]).encode()
    sums = {f"blobs/sha256/{packed}": packed, "blobs/sha256/1": "1" * 64, "blobs/config": "2" * 64}
    small = {"manifest.json": listing, "blobs/config": config}
    assert judged(f"sha256:{'1' * 64}", sums, small)["wrong"] == []
    sums[f"blobs/sha256/{packed}"] = "3" * 64
    assert judged(f"sha256:{'1' * 64}", sums, small)["wrong"] == ["layer 1 is not what it was (000000000000…)"]


def test_an_image_that_is_another_and_what_is_none_are_told() -> None:
    _, sums, small = archive([b"one"])
    assert judged(f"sha256:{ID}", sums, small)["wrong"] == ["nothing in it has the checksum that its ID says"]
    assert judged(f"sha256:{ID}", {}, {})["wrong"] == ["what the engine saves has no manifest that can be read"]


def test_a_whole_archive_is_read_as_it_is_saved(engine: Any, tmp_path: Path) -> None:
    from fleetctl.onbox.imageproof import image_prove

    identity, _, files = archive([b"a" * 5_000_000, b"b"])
    with tarfile.open(tmp_path / "saved.tar", "w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    (tmp_path / "told").write_text(json.dumps([{"Id": identity, "Size": 5_000_001}]))
    engine("podman", f'[ "$1" = save ] && exec cat {tmp_path}/saved.tar; cat {tmp_path}/told')
    told = image_prove(call(), "podman", "x")
    assert (told["id"], told["layers"], told["wrong"]) == (identity, 2, [])


def test_a_container_is_tried_under_another_name_and_without_what_its_start_needs() -> None:
    run = "/usr/bin/podman run --rm --name fleetctl-x --replace --pidfile /run/x.pid --entrypoint vllm i serve"
    name, argv = containers.tried([*run.split(), "--name", "engine's own"])
    assert name == "fleetctl-x-try"
    assert " ".join(argv) == ("podman create --rm --name fleetctl-x-try --entrypoint vllm i serve --name engine's own")


NO_CDI = "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"
NO_FLAG = "Error: unknown flag: --nosuch"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("exit 0", None),
        # As Podman 4.3.1 says it.
        (
            f'[ "$1" = init ] && {{ echo "{NO_CDI}" >&2; exit 125; }}; exit 0',
            f"podman cannot make the container: {NO_CDI}",
        ),
        (
            f'[ "$1" = create ] && {{ echo "{NO_FLAG}" >&2; echo "See \'podman create --help\'" >&2; exit 125; }}',
            f"podman cannot make the container: {NO_FLAG}",
        ),
    ],
)
def test_what_keeps_a_container_from_being_made_is_said_in_podmans_words_and_it_is_removed(
    engine: Any, tmp_path: Path, script: str, says: str | None
) -> None:
    program = engine("podman", f'echo "$@" >> {tmp_path}/asked\n{script}')
    words = [program, "run", "--name", "x", "--entrypoint", "vllm", "image"]
    if says is None:
        containers.container_try(call(), words, [str(tmp_path / "cache")])
        assert (tmp_path / "cache").is_dir()
    else:
        with pytest.raises(OpError) as failed:
            containers.container_try(call(), words, [])
        assert str(failed.value) == says
    assert (tmp_path / "asked").read_text().splitlines()[-1] == "rm --force --ignore --time 0 x-try"
