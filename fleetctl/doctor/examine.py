"""Asking the boxes what the families want to know, and their findings."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from fleetctl.doctor.finding import Finding, by_weight
from fleetctl.doctor.scene import Family, Scene
from fleetctl.errors import BoxError, FleetError
from fleetctl.facts.types import Seen
from fleetctl.remote.boxes import Boxes
from fleetctl.remote.connection import BoxConnection

LIMIT = 60.0  # seconds that a box has for the answer to one family

Answers = dict[str, dict[str, Seen]]
"""Family → box → what it told."""


def examine(boxes: Boxes, scene: Scene, families: Iterable[Family[Any]]) -> tuple[list[Finding], list[FleetError]]:
    """Findings of the families, the worst first, and what could not be looked at and why."""
    wanted = list(families)
    answers, failed = _ask(boxes, scene, wanted)
    found = [finding for family in wanted for finding in family.find(scene, answers.get(family.name, {}))]
    return by_weight(found, scene.fleet.boxes), failed


def _ask(boxes: Boxes, scene: Scene, families: list[Family[Any]]) -> tuple[Answers, list[FleetError]]:
    answers: Answers = {family.name: {} for family in families}
    failed: list[FleetError] = []

    def one(box: BoxConnection, family: Family[Any], args: dict[str, Any]) -> None:
        try:
            asked = time.time()
            told = box.call_with(str(family.op), args, timeout=LIMIT)
            when = {"asked_at": asked, "answered_at": time.time()}
            answers[family.name][box.name] = family.told.model_validate({**told, **when})
        except ValidationError as error:
            failed.append(BoxError(box.name, f"its answer about {family.name} is not understood: {error.errors()[0]}"))
        except FleetError as error:
            failed.append(error)

    def box_at_once(box: BoxConnection) -> None:
        """Questions of all families run beside each other: the program on the box has a thread for each."""
        if box.name not in scene.observed:
            return  # what failed there is said already, and no family knows what to ask without its facts
        asked = [(family, family.ask(scene, box.name)) for family in families if family.op is not None]
        threads = [
            threading.Thread(target=one, args=(box, family, args), daemon=True)
            for family, args in asked
            if args is not None
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    boxes.each(box_at_once)
    return answers, failed
