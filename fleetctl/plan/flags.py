"""Flags of engines in containers are checked once their images are on the boxes; of others the plan did. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.engine.runtimes.known import RUNTIMES
from fleetctl.plan.draft import Draft, Move
from fleetctl.render.help import engine_words_of, image_question


def verify_flags(move: Move) -> Iterable[Draft]:
    """The engine in an image knows every flag that it would be started with."""
    for name, box in move.difference.boxes.items():
        for unit, (engine, rank) in box.coming.items():
            if rank.container is None or engine.image is None:
                continue
            runtime = RUNTIMES[engine.runtime]
            yield Draft(
                name,
                f"{name}/{engine.model}",
                f"the engine in the image of {unit} on {name} knows its flags",
                frozenset({name}),
                {
                    "model": engine.model,
                    "runtime": runtime.name,
                    "question": image_question(engine.image[0], engine.image_reference, runtime),
                    "words": list(engine_words_of(rank.container.words, runtime)),
                },
            )
