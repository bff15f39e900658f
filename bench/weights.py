#!/usr/bin/env python3
"""Weights from one box to two others: how fast, what a cut costs, and what one wrong byte costs.

Run it alone, as root, on Debian or Ubuntu: ``python3 bench/weights.py``. It brings up three boxes of its own. The first
has 2 GB of safetensors in four files; all figures are about bringing them to both others at once.

- ``share_of_plain``: a plain TCP stream to both boxes at once (no SSH, no checksums: the sender gives each file to
  sendfile(2), each receiver reads into a buffer of 1 MiB, writes the files and calls fsync for each; timed from before
  the senders connect until both receivers have answered that all is on the disk), divided by what ``fleetctl weights
  push`` takes from the beginning of the first step that sends until the end of the last: asking for what is there, the
  connections, sending, the checksum of every part, fsync, owner and mode, the manifests. The two take turns; the figure
  is the median over rounds of the ratio of neighbours. The sender's files are in its page cache in either case. Its own
  checksums are made once before, by ``fleetctl weights verify``: ``source_checksums_s``.
- ``share_of_plain_command``: the same with the whole command as a process: Python, connecting to three boxes over SSH,
  the lock, the plan and the journal, which take as long for 2 GB as for 200.
- ``share_of_plain_memory``: the same with the weights of all boxes in tmpfs, so that no disk takes part: what the CPUs
  of this machine, which work for all three boxes at once, allow. No goal: with checksums there is more to do for them.
- ``ssh_share_of_plain_memory``: ``cat | ssh cat`` to both boxes at once, in memory too, for comparison.
- ``resent_after_cut_parts``: the operator's process is killed with SIGKILL in the middle of a push; the same command
  is run again. Counted is what the two boxes received in the second run beyond what was not on their disks when the
  first had ended (blocks in use of what had arrived), in parts of 16 MiB, of the box that had more.
- ``resent_for_a_byte_parts``: one byte of a file on the second box is changed, its time of change kept.
  ``fleetctl weights verify --full`` has to find the file and the part, and ``--repair`` to send this part alone.

Progress goes to standard error; the last line of standard output is JSON. Exit status 0: all was measured.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import CHECKOUT, BenchError, Figure, at_least, at_most, environment, make_venv, say, say_load
from _lab import base_cache, boxes_of, measured

from fleetctl.lab.lab import Lab

if TYPE_CHECKING:
    from fleetctl.lab.state import LabBox

FOLDER = Path("/var/lib/fleetctl-bench-weights")
MODEL, WEIGHTS = "big", "/srv/models/big"
PART = 16 * 2**20
PORT = 7001

MAKE = """
import json, os, sys
folder, shards, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.makedirs(folder)
names = {}
for number in range(shards):
    name = "model-%05d-of-%05d.safetensors" % (number + 1, shards)
    head = json.dumps({"w%d" % number: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with open(os.path.join(folder, name), "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        left = size
        while left:
            left -= file.write(os.urandom(min(left, 1 << 20)))
        os.fsync(file.fileno())
    names["w%d" % number] = name
with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
    json.dump({"weight_map": names}, file)
with open(os.path.join(folder, "config.json"), "w") as file:
    json.dump({"model_type": "llama"}, file)
"""

RECEIVE = """
import os, socket, struct, sys
own, port, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.makedirs(folder)
listener = socket.create_server((own, port))
print("ready", flush=True)
sock, _ = listener.accept()
buffer = memoryview(bytearray(1 << 20))
def whole(count):
    data = b""
    while len(data) < count:
        data += sock.recv(count - len(data))
    return data
for number in range(struct.unpack("!q", whole(8))[0]):
    left = struct.unpack("!q", whole(8))[0]
    with open(os.path.join(folder, str(number)), "wb", buffering=0) as file:
        while left:
            count = sock.recv_into(buffer[: min(left, 1 << 20)], 0, socket.MSG_WAITALL)
            file.write(buffer[:count])
            left -= count
        os.fsync(file.fileno())
sock.sendall(b"done")
"""

SEND = """
import os, socket, struct, sys, threading, time
folder, port, peers = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))
def send(peer):
    sock = socket.create_connection((peer, port))
    sock.sendall(struct.pack("!q", len(paths)))
    for path in paths:
        with open(path, "rb") as file:
            size = os.path.getsize(path)
            sock.sendall(struct.pack("!q", size))
            at = 0
            while at < size:
                at += os.sendfile(sock.fileno(), file.fileno(), at, size - at)
    answer = b""
    while len(answer) < 4:
        piece = sock.recv(4)
        if not piece:
            os._exit(1)
        answer += piece
began = time.monotonic()
threads = [threading.Thread(target=send, args=(peer,)) for peer in peers]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(time.monotonic() - began)
"""

FLIP = """
import os, sys
path, at = sys.argv[1], int(sys.argv[2])
before = os.stat(path)
with open(path, "r+b") as file:
    file.seek(at)
    old = file.read(1)
    file.seek(at)
    file.write(bytes([old[0] ^ 1]))
os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how weights get from one box to two others.")
    parser.add_argument("--rounds", type=int, default=3, help="rounds on the disk, and as many in memory")
    parser.add_argument("--megabytes", type=int, default=2000, help="size of the model in MB")
    options = parser.parse_args()
    lab = Lab(
        FOLDER / "lab", bridge="fleetbench4", subnet="10.77.214.0/24", link_subnet="10.78.214.0/24", base=base_cache()
    )
    return measured("weights", FOLDER, lab.down, lambda: measure(lab, options.rounds, options.megabytes * 10**6))


def measure(lab: Lab, rounds: int, size: int) -> dict[str, Figure]:
    """Set everything up, measure, and return the figures."""
    fleetctl = make_venv(FOLDER / "fleetctl", str(CHECKOUT)) / "fleetctl"
    fleet = Fleet(lab, fleetctl, lab.up(3, say))
    say(f"{size / 1e9:g} GB of safetensors on {fleet.source}")
    fleet.make(size)
    took = fleet.timed("verify")
    say(f"checksums on {fleet.source}: {took:.1f} s")
    figures = {"source_checksums_s": Figure(round(took, 2), "s")}
    say_load()
    figures |= speeds(fleet, rounds, "")
    figures["resent_after_cut_parts"] = cut(fleet, size)
    figures["resent_for_a_byte_parts"] = one_byte(fleet)
    say("the same in memory")
    fleet.into_memory(size)
    fleet.timed("verify")
    figures |= speeds(fleet, rounds, "_memory")
    ssh = fleet.ssh()
    plain = figures["plain_memory_mb_s"].value
    figures["ssh_share_of_plain_memory"] = Figure(round(fleet.size * 2 / ssh / 1e6 / plain, 3), "x")
    say_load()
    return figures


class Fleet:
    """Three boxes, the command, and the plain stream."""

    def __init__(self, lab: Lab, fleetctl: Path, boxes: Sequence[LabBox]) -> None:
        self.lab = lab
        self.boxes = list(boxes)
        self.source, *self.targets = [box.name for box in boxes]
        self.size = 0
        self._fleetctl = fleetctl
        document = {
            "fleet": "bench",
            "boxes": boxes_of(boxes, "4GiB", "1GiB"),
            "models": {MODEL: {"weights": WEIGHTS, "context": 8192, "launch": {"venv": "/opt/none"}}},
            "layouts": {"replicas": {MODEL: {"copies": [box.name for box in boxes]}}},
            "proxy": {"box": boxes[0].name, "port": 8080},
        }
        self._file = FOLDER / "fleet.yaml"
        self._file.write_text(json.dumps(document))  # JSON is YAML

    def sh(self, box: str, *argv: str) -> str:
        """Standard output of a command as root on a box. BenchError when it fails."""
        done = self.lab.exec(box, argv)
        if done.returncode != 0:
            raise BenchError(f"{box}: {argv[:3]} ended with status {done.returncode}: {done.stderr[-500:]}")
        return done.stdout

    def make(self, size: int) -> None:
        """Write the model on the first box."""
        self.sh(self.source, "python3", "-c", MAKE, WEIGHTS, "4", str(size // 4))
        self.size = int(self.sh(self.source, "du", "-sb", WEIGHTS).split()[0])

    def into_memory(self, size: int) -> None:
        """Mount tmpfs over /srv on every box, and make the model there again."""
        self.clear()
        self.sh(self.source, "rm", "-r", WEIGHTS)
        for box in (self.source, *self.targets):
            self.sh(box, "rm", "-rf", "/var/lib/fleetctl/weights")  # of the model before, with other bytes
            self.sh(box, "mount", "-t", "tmpfs", "-o", f"size={2 * size + 2**28}", "tmpfs", "/srv")
        self.make(size)

    def clear(self) -> None:
        """What earlier runs brought to the others goes, and is off the disk."""
        for box in self.targets:
            self.sh(box, "sh", "-c", f"rm -rf {WEIGHTS} /srv/plain /srv/models/.[!.]*; sync")

    def warm(self) -> None:
        """The source's files are in its page cache, for either contender."""
        self.sh(self.source, "sh", "-c", f"cat {WEIGHTS}/* > /dev/null")

    def argv(self, *words: str) -> list[str]:
        """The command, on this fleet."""
        return [str(self._fleetctl), "weights", *words, "-f", str(self._file), "--json"]

    def timed(self, *words: str) -> float:
        """Seconds of the command as a whole process; ``verify`` may find that others have nothing yet."""
        begin = time.perf_counter()
        done = subprocess.run(self.argv(*words), capture_output=True, text=True, env=environment(), check=False)
        if done.returncode != (9 if words[0] == "verify" else 0):
            raise BenchError(f"weights {' '.join(words)}: status {done.returncode}: {done.stdout[-1500:]}{done.stderr}")
        return time.perf_counter() - begin

    def pushed(self) -> tuple[float, float]:
        """Seconds of a push's sending, and of the whole command."""
        begin = time.perf_counter()
        events = self.told("push", MODEL, "--yes")
        whole = time.perf_counter() - begin
        sends = [event for event in events if ".send_weights." in str(event.get("step"))]
        done = [event["at"] for event in sends if event["state"] == "done"]
        if len(done) != len(self.targets):
            raise BenchError(f"the push failed: {events[-1]}")
        return max(done) - min(event["at"] for event in sends if event["state"] == "begin"), whole

    def told(self, *words: str) -> list[dict[str, Any]]:
        """Events of the command."""
        done = subprocess.run(self.argv(*words), capture_output=True, text=True, env=environment(), check=False)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def plain(self) -> float:
        """Seconds of the plain stream to both others at once."""
        ready: list[threading.Thread] = []
        failed: list[str] = []

        def receive(box: LabBox) -> None:
            done = self.lab.exec(box.name, ["python3", "-c", RECEIVE, box.link_address, str(PORT), "/srv/plain"])
            if done.returncode != 0:
                failed.append(f"{box.name}: {done.stderr[-500:]}")

        others = self.boxes[1:]
        for box in others:
            ready.append(threading.Thread(target=receive, args=(box,)))
            ready[-1].start()
        for box in others:
            while not self.lab.exec(box.name, ["ss", "-Hltn", f"sport = :{PORT}"]).stdout and not failed:
                time.sleep(0.1)
        peers = [box.link_address for box in others]
        took = float(self.sh(self.source, "python3", "-c", SEND, WEIGHTS, str(PORT), *peers))
        for thread in ready:
            thread.join()
        if failed:
            raise BenchError("; ".join(failed))
        return took

    def ssh(self) -> float:
        """Seconds of ``cat | ssh cat`` to both others at once, with the lab's own key."""
        self.clear()
        key = self.boxes[0].key.read_text()
        self.lab.exec(self.source, ["sh", "-c", "umask 077; cat > /root/lab-key"], input=key)
        options = "-i /root/lab-key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        jobs = [
            f"cat {WEIGHTS}/* | ssh {options} {box.user}@{box.link_address} 'sudo sh -c \"cat > /srv/plain\"' &"
            for box in self.boxes[1:]
        ]
        begin = time.perf_counter()
        self.sh(self.source, "sh", "-c", f"{' '.join(jobs)} wait; rm /root/lab-key")
        took = time.perf_counter() - begin
        for box in self.targets:
            if int(self.sh(box, "stat", "-c", "%s", "/srv/plain")) < self.size * 0.99:
                raise BenchError(f"{box}: the stream through SSH did not bring everything")
        return took


def speeds(fleet: Fleet, rounds: int, where: str) -> dict[str, Figure]:
    """The plain stream and the push in turn."""
    plain, ours, whole = [], [], []
    for number in range(1, rounds + 1):
        fleet.clear()
        fleet.warm()
        plain.append(fleet.plain())
        fleet.clear()
        fleet.warm()
        sent, command = fleet.pushed()
        ours.append(sent)
        whole.append(command)
        say(f"round {number} of {rounds}: plain {plain[-1]:.1f} s, push {sent:.1f} s (whole command {command:.1f} s)")
    ratio, of_command = (
        statistics.median(one / other for one, other in zip(plain, times, strict=True)) for times in (ours, whole)
    )
    rates = [2 * fleet.size / statistics.median(times) / 1e6 for times in (plain, ours)]
    return {
        f"share_of_plain{where}": Figure(round(ratio, 3), "x") if where else at_least(ratio, 0.8),
        f"share_of_plain{where}_command": Figure(round(of_command, 3), "x"),
        f"plain{where}_mb_s": Figure(round(rates[0]), "MB/s"),
        f"push{where}_mb_s": Figure(round(rates[1]), "MB/s"),
    }


def cut(fleet: Fleet, size: int) -> Figure:
    """Kill a push in its middle, and do it again."""
    fleet.clear()
    process = subprocess.Popen(fleet.argv("push", MODEL, "--yes"), stdout=subprocess.PIPE, text=True, env=environment())
    assert process.stdout
    for line in process.stdout:
        seen = json.loads(line).get("seen", {})
        if seen.get("doing") == "receiving" and seen["bytes"] > 0.4 * size:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(8)  # until the program on the boxes has noticed, and has ended
    found = "find /srv/models -path '*.fleetctl-arriving/files/*' -type f -printf '%b\\n'"
    blocks = f"{found} | awk '{{n += $1}} END {{print n * 512}}'"
    there = {box: int(fleet.sh(box, "sh", "-c", blocks) or 0) for box in fleet.targets}
    if not any(there.values()):
        raise BenchError("nothing had arrived when the push was killed")
    results = {
        event["step"].partition(".send_weights.")[2].partition("/")[0]: event["result"]["received"]
        for event in fleet.told("push", MODEL, "--yes")
        if event.get("state") == "done" and ".send_weights." in event.get("step", "")
    }
    for box in fleet.targets:
        say(f"{box}: {there[box] / 1e6:.0f} MB had arrived, {results[box] / 1e6:.0f} MB came after the cut")
    parts = max((results[box] - max(0, fleet.size - there[box])) / PART for box in fleet.targets)
    return at_most(max(0.0, parts), 1, "parts")


def one_byte(fleet: Fleet) -> Figure:
    """Change a byte, have it found, and have it mended."""
    name = "model-00003-of-00004.safetensors"
    fleet.sh(fleet.targets[0], "python3", "-c", FLIP, f"{WEIGHTS}/{name}", str(5 * PART + 12345))
    seen = next(event for event in fleet.told("verify", MODEL) if event["type"] == "weights")
    if seen["problems"]:
        raise BenchError(f"a byte was found without reading: {seen['problems']}")
    seen = next(event for event in fleet.told("verify", MODEL, "--full") if event["type"] == "weights")
    wrong = {place["box"]: place["wrong"] for place in seen["places"] if place["wrong"]}
    if wrong != {fleet.targets[0]: {name: [5]}}:
        raise BenchError(f"found {wrong}")
    events = fleet.told("verify", MODEL, "--repair", "--yes")
    (result,) = [
        event["result"]
        for event in events
        if event.get("state") == "done" and ".send_weights." in event.get("step", "")
    ]
    seen = next(event for event in fleet.told("verify", MODEL, "--full") if event["type"] == "weights")
    if seen["problems"]:
        raise BenchError(f"not mended: {seen['problems']}")
    sums = {fleet.sh(box, "sh", "-c", f"cat {WEIGHTS}/* | sha256sum") for box in (fleet.source, *fleet.targets)}
    if len(sums) != 1:
        raise BenchError("the boxes do not have the same bytes")
    say(f"one byte: {result['received'] / 1e6:.1f} MB came again")
    return at_most(result["received"] / PART, 1, "parts")


if __name__ == "__main__":
    sys.exit(main())
