"""Container images in plans: refused where they differ, told where they are missing, copied to those that lack them."""

from __future__ import annotations

from typing import Any

import pytest
from planned import BEFORE, GIB, boxes_in, office

from fleetctl.errors import SpecError
from fleetctl.facts.types import ImageFacts
from fleetctl.plan.difference import compare
from fleetctl.plan.draft import Move
from fleetctl.plan.imagepush import ImageThere, ImageWanted, missing_room, push_steps
from fleetctl.plan.images import have_image, image_refusals, image_warnings, other_builds, same_image
from fleetctl.render.layout import render_layout
from fleetctl.render.release import Release
from fleetctl.run.images import chosen, disagreements, images_of

ONE, OTHER = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"


def fleet_of(image: str = "vllm:v1", **more: Any) -> Any:
    return office(models__qwen__launch={"image": image, "engine": "podman", **more})


def situation(ids: dict[str, str | None], **launch: Any) -> tuple[Release, Any, Any]:
    """The replicas of a fleet whose boxes have these images: release, facts and difference."""
    release = render_layout(fleet_of(**launch), "replicas")
    reference = release.engines[0].image_reference
    observed = {
        box: facts.model_copy(update={"images": {reference: ImageFacts(id=ids[box] or "")}})
        for box, facts in boxes_in(BEFORE, None).items()
    }
    return release, observed, compare(BEFORE, release, observed, 1)


def test_one_name_for_two_images_is_refused_and_the_way_out_named() -> None:
    release, observed, difference = situation({"a": ONE, "b": OTHER})
    (refusal,) = image_refusals(release, observed, difference, lenient=False)
    assert "a has 111111111111, b has 222222222222" in refusal
    assert "`fleetctl images push vllm:v1 --from a b`" in refusal
    assert image_warnings(release, observed, difference, lenient=False) == []


def test_on_the_way_back_it_is_only_told() -> None:
    release, observed, difference = situation({"a": ONE, "b": OTHER})
    assert list(image_refusals(release, observed, difference, lenient=True)) == []
    assert "not the same" in image_warnings(release, observed, difference, lenient=True)[0]


def test_an_image_that_a_box_lacks_is_told_with_the_box_that_has_it() -> None:
    release, observed, difference = situation({"a": ONE, "b": None})
    assert list(image_refusals(release, observed, difference, lenient=False)) == []
    assert image_warnings(release, observed, difference, lenient=False) == [
        "b: the image vllm:v1 is not there and is pulled from its registry; "
        "`fleetctl images push vllm:v1` copies it from a"
    ]


def test_a_box_that_cannot_run_containers_is_refused() -> None:
    release, observed, difference = situation({"a": ONE, "b": None})
    broken = {"vllm:v1": ImageFacts(problem="no program podman here")}
    observed["b"] = observed["b"].model_copy(update={"images": broken})
    (refusal,) = image_refusals(release, observed, difference, lenient=False)
    assert refusal == "b: no program podman here: podman has to run there, for the image vllm:v1"


@pytest.mark.parametrize(
    ("launch", "lenient", "proven"),
    [({}, False, True), ({}, True, False), ({"id": ONE}, False, False), ({"image": f"vllm@{ONE}"}, False, False)],
)
def test_every_box_has_the_image_and_one_that_is_not_pinned_is_proven_to_be_the_same(
    launch: dict[str, Any], lenient: bool, proven: bool
) -> None:
    release, observed, difference = situation({"a": ONE, "b": ONE}, **launch)
    move = Move(BEFORE, release, observed, difference, 1, "a", lenient=lenient)
    assert [draft.box for draft in have_image(move)] == ["a", "b"]
    assert [draft.params["boxes"] for draft in same_image(move)] == ([["a", "b"]] if proven else [])


def test_a_name_that_was_given_to_another_image_since_a_generation_is_told_on_the_way_back() -> None:
    release, observed, _ = situation({"a": ONE, "b": OTHER})
    builds = {"vllm:v1": {"version": "vllm:v1", "digest": ONE.removeprefix("sha256:")}}
    noted = {box: facts.model_copy(update={"generations": {3: {"builds": builds}}}) for box, facts in observed.items()}
    assert other_builds(release, noted, 3) == [
        "b: generation 3 was made with 111111111111 as vllm:v1, and that is 222222222222 now; "
        "`podman tag 111111111111 vllm:v1` there gives the name back"
    ]
    assert other_builds(release, observed, 3) == []


def there(free: int = 100 * GIB, *devices: int, **more: Any) -> ImageThere:
    rooms = [{"path": f"/{number}", "device": number, "free": free} for number in devices or (1, 1)]
    return ImageThere.model_validate({"rooms": rooms, **more})


@pytest.mark.parametrize(
    ("free", "devices", "fits"),
    [(21 * GIB, (1, 1), True), (20 * GIB, (1, 1), False), (11 * GIB, (1, 2), True), (10 * GIB, (1, 2), False)],
)
def test_an_image_takes_its_size_twice_where_it_arrives_and_lies_on_one_disk(
    free: int, devices: tuple[int, ...], fits: bool
) -> None:
    assert (missing_room(10 * GIB, there(free, *devices)) is None) == fits


def test_all_disks_have_room_before_anything_is_sent() -> None:
    wanted = ImageWanted(engine="podman", name="vllm:v1", boxes=("a", "b", "c"))
    addresses = {box: f"10.1.0.{number}" for number, box in enumerate("abc")}
    steps = push_steps(wanted, ("a", there(id=ONE, size=GIB)), ["b", "c"], addresses=addresses, share=100e6)
    assert [step.kind for step in steps] == ["image_room", "image_room", "send_image", "send_image"]
    assert {step.after for step in steps[2:]} == {tuple(step.id for step in steps[:2])}
    assert [step.params["limit"] for step in steps[2:]] == [100e6, 100e6]
    assert steps[3].params["addresses"] == {"a": "10.1.0.0", "c": "10.1.0.2"}


@pytest.mark.parametrize(
    ("name", "tag"), [("vllm:v1", "vllm:v1"), (f"vllm@{ONE}", ""), (ONE, ""), ("host:5000/a/b", "host:5000/a/b")]
)
def test_a_copy_gets_the_name_that_is_no_registrys_digest(name: str, tag: str) -> None:
    assert ImageWanted(engine="podman", name=name).tag == tag


def test_images_are_named_by_model_or_by_themselves() -> None:
    fleet = fleet_of()
    assert [(one.name, one.models, one.boxes) for one in images_of(fleet)] == [("vllm:v1", ("qwen",), ("a", "b"))]
    assert chosen(fleet, "qwen") == chosen(fleet, "vllm:v1")
    assert chosen(fleet, "postgres:16", "docker")[0].boxes == ("a", "b")


@pytest.mark.parametrize(
    ("fleet", "name", "says", "hint"),
    [
        (fleet_of(), "qwne", "no model of fleet.yaml is started from the image qwne", "did you mean qwen?"),
        (fleet_of(), "vllm:v2", "no model of fleet.yaml is started from the image vllm:v2", "did you mean vllm:v1?"),
        (office(), "qwen", "the model qwen is not started from an image", "launch:"),
        (office(), "vllm:v1", "no model of fleet.yaml is started from the image vllm:v1", "--engine podman or docker"),
    ],
)
def test_a_name_that_is_no_image_is_answered_with_the_nearest(fleet: Any, name: str, says: str, hint: str) -> None:
    with pytest.raises(SpecError) as refused:
        chosen(fleet, name)
    assert refused.value.message == says
    assert hint in (refused.value.hint or "")


def test_what_is_not_right_with_an_image_is_told_box_by_box() -> None:
    wanted = ImageWanted(engine="podman", name="vllm:v1", boxes=("a", "b", "c", "d"))
    found = {"a": there(id=ONE), "b": there(id=OTHER), "c": there(), "d": ImageThere(problem="no program podman here")}
    assert disagreements(wanted, found) == [
        "d: no program podman here",
        "c: vllm:v1 is not there",
        "not the same: 111111111111 on a, 222222222222 on b",
    ]
    assert disagreements(wanted, {"a": there(id=ONE), "b": there(id=ONE)}) == []
