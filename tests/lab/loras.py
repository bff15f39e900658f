"""A fleet of lab boxes whose model takes LoRA adapters, and what is known of them on boxes and engines."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import httpx
from moving import BOXES, Moving, Ran

from fleetctl.lab.tinylora import make_tiny_base, make_tiny_lora

BASE = "/models/tiny"
FOLDER = "/var/lib/fleetctl/loras"


def put_folder(moving: Moving, box: str, folder: Path, path: str) -> None:
    """Copy a folder of this machine to a box."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.add(folder, arcname=".")
    text = base64.encodebytes(packed.getvalue()).decode()
    moving.sh(box, f"mkdir -p {path} && base64 -d | tar xz -C {path}", text)


class Loras:
    """The fleet with `loras:`; commands, adapters and engines."""

    def __init__(self, moving: Moving, folder: Path, **settings: Any) -> None:
        self.moving, self.folder = moving, folder

        def change(document: dict[str, Any]) -> None:
            model = document["models"]["standin"]
            model["weights"] = BASE
            model["loras"] = {"max_loras": 4, "max_lora_rank": 16, **settings}

        self.text = moving.changed(change)
        base = make_tiny_base(folder / "base")
        for box in BOXES:
            put_folder(moving, box, base, BASE)

    def be_in(self, layout: str) -> None:
        self.moving.cutover(layout, text=self.text)

    def make(self, name: str, **how: Any) -> Path:
        """An adapter on this machine."""
        return make_tiny_lora(self.folder / "adapters" / name, **how)

    def run(self, *words: str) -> Ran:
        return self.moving.run(*words, text=self.text)

    def push(self, *folders: Path, words: tuple[str, ...] = ()) -> Ran:
        """A push that has to succeed."""
        ran = self.run("lora", "push", *map(str, folders), *words, "--yes")
        assert ran.rc == 0, ran
        return ran

    def seen(self) -> dict[str, Any]:
        """What `fleetctl lora list` says."""
        ran = self.run("lora", "list")
        return {**next(event for event in ran.events if event["type"] == "adapters"), "exit": ran.rc}

    def names(self) -> list[str]:
        return sorted(name for entries in self.seen()["adapters"].values() for name in entries)

    def remove_all(self) -> None:
        names = self.names()
        if names:
            ran = self.run("lora", "remove", *names, "--yes")
            assert ran.rc == 0, ran

    def on_engines(self) -> dict[str, list[str]]:
        """Box → adapters that its engine has, as it says itself; boxes without an engine are left out."""
        found = {}
        for box in BOXES:
            address = self.moving.lab.box(box).address
            try:
                cards = httpx.get(f"http://{address}:8000/v1/models", timeout=30, trust_env=False).json()["data"]
            except httpx.HTTPError:
                continue
            found[box] = sorted(card["id"] for card in cards if card["parent"])
        return found

    def ask(self, model: str, path: str = "/v1/completions", **more: Any) -> httpx.Response:
        """A completion through the proxy."""
        body = {"model": model, "prompt": "hello", "max_tokens": 4, **more}
        return httpx.post(self.moving.proxy + path, json=body, timeout=60, trust_env=False)

    def answers(self, name: str) -> bool:
        answer = self.ask(name)
        return answer.status_code == 200 and answer.json()["model"] == name

    def state(self) -> dict[str, str]:
        """All that is kept of adapters on the boxes, and which processes the engines are."""
        look = f"cd {FOLDER} 2>/dev/null && find . -type f -exec sha256sum {{}} + | sort; true"
        units = "systemctl show -P MainPID fleetctl-replicas-standin.service"
        return {box: self.moving.sh(box, f"{look}; {units}") for box in BOXES}

    def index(self, box: str) -> dict[str, Any]:
        return dict(json.loads(self.moving.sh(box, f"cat {FOLDER}/index.json")))
