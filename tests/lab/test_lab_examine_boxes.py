"""Doctor on boxes: nothing is said of a healthy fleet, and faults that can be planted on a box are found."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moving import COPY, Moving

Found = dict[str, list[dict[str, Any]]]

SMI = "/usr/local/bin/nvidia-smi"
# What the tool prints on a GB10, whose GPU has no memory of its own.
GB10 = """#!/bin/sh
case "$1" in
--query-gpu=index,name*) echo "0, NVIDIA GB10, [N/A], [N/A], 580.95.05";;
--query-gpu=*) echo "0, Not Active, Not Active, Not Active";;
--query-compute-apps=*) ;;
*) exit 1;;
esac
"""
MISMATCH = """#!/bin/sh
echo "Failed to initialize NVML: Driver/library version mismatch"
echo "NVML library version: 580.95"
exit 18
"""
EARLYOOM = """MESSAGE=sending SIGTERM to process 4711 uid 0 "VLLM::EngineCor": badness 1134, VmRSS 105372 MiB
SYSLOG_IDENTIFIER=earlyoom
"""


def doctor(moving: Moving, *words: str, text: str | None = None) -> Found:
    """Code → findings of the families *memory* and *box*."""
    begin = time.monotonic()
    ran = moving.run("doctor", *words, text=text)
    assert ran.rc in (0, 9), ran
    print(f"\ndoctor took {time.monotonic() - begin:.2f} s")
    found: Found = {}
    for event in ran.events:
        if event["type"] == "finding" and event["code"][0] in "MB":
            found.setdefault(event["code"], []).append(event)
    return found


def test_a_healthy_fleet_has_no_finding_and_n_a_of_a_gpu_is_not_zero(moving: Moving) -> None:
    moving.be_in("split")
    assert doctor(moving) == {}
    moving.be_in("replicas")
    moving.put("box2", SMI, GB10, "755")
    try:
        # The box has more than its file says; engines of a GPU would take shares of all of it.
        assert list(doctor(moving)) == ["M01"]
    finally:
        moving.sh("box2", f"rm {SMI}")
    assert doctor(moving) == {}


PLANTED = {
    "the driver was upgraded under a running box": (
        f"cat > {SMI}; chmod 755 {SMI}",
        MISMATCH,
        f"rm {SMI}",
        "B06",
        "the driver was upgraded and the box not booted since",
    ),
    "a disk for images is full": (
        "mkdir /var/lib/docker && mount -t tmpfs -o size=4m tmpfs /var/lib/docker && fallocate -l 4000k "
        "/var/lib/docker/layer",
        "",
        "umount /var/lib/docker && rmdir /var/lib/docker",
        "B03",
        "the disk of /var/lib/docker has 0.0 GiB free",
    ),
    "logind would put the box to sleep": (
        "mkdir -p /etc/systemd/logind.conf.d && printf '[Login]\\nIdleAction=suspend\\n' > "
        "/etc/systemd/logind.conf.d/office.conf",
        "",
        "rm -r /etc/systemd/logind.conf.d",
        "B12",
        "logind does so when nobody is at it (IdleAction=suspend)",
    ),
    "a running engine may open 1024 files": (
        f"prlimit --pid $(systemctl show -P MainPID {COPY}) --nofile=1024:1024",
        "",
        f"systemctl restart {COPY}",
        "B05",
        f"{COPY} may have 1,024 files open",
    ),
    "earlyoom would end the engine before anybody": (
        "cp /bin/sleep /run/earlyoom && systemd-run -q --unit=earlyoom /run/earlyoom 600",
        "",
        "systemctl stop earlyoom && rm /run/earlyoom",
        "M16",
        "earlyoom ends a process when less than",
    ),
    "earlyoom has ended an engine": (
        "logger --journald",
        EARLYOOM,
        "journalctl --rotate && journalctl --vacuum-time=1s",
        "M13",
        "VLLM::EngineCor was ended by earlyoom",
    ),
}


@contextmanager
def planted(moving: Moving) -> Iterator[None]:
    """All faults at once on box2, for the length of the block."""
    done = []
    try:
        for plant, text, undo, _, _ in PLANTED.values():
            put = moving.lab.exec("box2", ["sh", "-c", plant], input=text)
            done.append(undo)
            assert put.returncode == 0, (plant, put.stderr)
        yield
    finally:
        taken = [(undo, moving.lab.exec("box2", ["sh", "-c", undo])) for undo in done]
    assert [(undo, ran.stderr) for undo, ran in taken if ran.returncode != 0] == []


def test_planted_faults_are_found_on_their_box_and_nothing_else_is(moving: Moving) -> None:
    moving.be_in("replicas")
    with planted(moving):
        found = doctor(moving)
    assert sorted(found) == sorted(code for _, _, _, code, _ in PLANTED.values()), found
    for fault, (_, _, _, code, says) in PLANTED.items():
        (one,) = found[code]
        assert one["box"] == "box2" and says in one["says"] and one["evidence"] and one["fix"], (fault, one)


FILES = {
    "config.json": '{"architectures": ["LlamaForCausalLM"]}',
    "chat_template.jinja": "{{ messages }}",
    "tokenizer.json": "{}",
}


def put_model(moving: Moving, box: str, payload: str, **changed: str) -> None:
    """A small model under /srv/model: one tensor of 64 bytes."""
    for name, text in {**FILES, **{key.replace("__", "."): value for key, value in changed.items()}}.items():
        moving.put(box, f"/srv/model/{name}", text)
    header = '{"w":{"dtype":"F32","shape":[16],"data_offsets":[0,64]}}'
    write = (
        "import struct,sys; h=sys.argv[1].encode(); "
        "open('/srv/model/model.safetensors','wb').write(struct.pack('<Q',len(h))+h+sys.argv[2].encode()*64)"
    )
    ran = moving.lab.exec(box, ["python3", "-c", write, header, payload])
    assert ran.returncode == 0, ran.stderr


def test_model_files_that_differ_are_found_by_header_and_words_and_by_checksum_where_those_agree(
    moving: Moving,
) -> None:
    text = moving.changed(lambda d: d["models"]["standin"].update(weights="/srv/model"))
    for box in ("box1", "box2"):
        put_model(moving, box, "a")
    assert doctor(moving, text=text) == {}
    assert doctor(moving, "--checksums", text=text) == {}
    put_model(moving, "box2", "a", chat_template__jinja="{{ other }}")
    (one,) = doctor(moving, text=text)["B10"]
    assert one["says"] == (
        "/srv/model is not the same on box2 as on box1: chat_template.jinja has 14 bytes on box1 and 11 on box2"
    )
    put_model(moving, "box2", "b")
    assert doctor(moving, text=text) == {}
    (one,) = doctor(moving, "--checksums", text=text)["B10"]
    assert one["box"] == "box2" and "model.safetensors" in one["says"]
    # A file that was cut short is told as such, and not only as different.
    moving.sh("box2", "truncate -s 80 /srv/model/model.safetensors")
    found = doctor(moving, text=text)
    assert sorted(found) == ["B10", "B11"]
    assert "model.safetensors has 80 bytes of" in found["B11"][0]["says"]
