"""What a doctor looks at, from the boxes that can be reached."""

from __future__ import annotations

from fleetctl.doctor.scene import Scene
from fleetctl.facts.gather import gather_some, questions
from fleetctl.facts.types import lead_of
from fleetctl.remote.errors import SeveralBoxesError
from fleetctl.render.layout import render_layout
from fleetctl.render.release import Release
from fleetctl.run.subject import Subject


def scene_of(subject: Subject) -> Scene:
    """Facts of all boxes that answer, with the releases of every layout of the file.

    Raises SeveralBoxesError when none does, SpecError when a layout cannot be rendered.
    """
    releases = tuple(render_layout(subject.fleet, layout, spec_text=subject.text) for layout in subject.fleet.layouts)
    observed, failed = gather_some(subject.boxes, questions(subject.fleet, releases))
    away = {**subject.unreachable, **failed}
    if not observed:
        raise SeveralBoxesError(away)
    lead = lead_of(observed, subject.fleet.proxy.lead)
    facts = observed.get(lead) or max(observed.values(), key=lambda one: one.generation or 0)
    live = facts.release or Release(fleet=subject.fleet.fleet, layout=None)
    return Scene(subject.fleet, releases, live, observed, away)
