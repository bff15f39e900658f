"""What ``--to`` of an upgrade may be, and the one line of fleet.yaml that it changes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetctl.errors import SpecError
from fleetctl.run.planning import Subject, wanted_release
from fleetctl.run.upgrading import has_build, launch_for, upgraded
from fleetctl.spec.edit import refuse_unwritable
from fleetctl.spec.edit_launch import with_launch
from fleetctl.spec.load import parse_fleet

TEXT = """\
fleet: office
boxes:
  a: {address: 10.0.0.1, memory: 100GiB, reserve: 20GiB}
builds:
  v32: {venv: /opt/vllm-0.32}
  v33: {image: "ghcr.io/x/vllm:33", engine: podman, options: [--gpus=all]}
models:
  chat:
    weights: /m/chat
    context: 8192
    launch:
      venv: /opt/vllm   # installed by hand
    arguments: [--seed, "1"]
  boxed: {weights: /m/boxed, context: 8192, launch: {image: "ghcr.io/x/vllm:32", engine: podman, options: [-e, A=b]}}
  notes:
    runtime: llama.cpp
    weights: /m/notes.gguf
    context: 8192
    launch: {program: /opt/llama-server}
  named: {weights: /m/named, context: 8192, launch: {build: v32}}
layouts:
  one:
    chat: {copies: [a]}
proxy: {box: a}
"""
FLEET = parse_fleet(TEXT, "fleet.yaml")

WAYS = [
    ("chat", "v33", {"build": "v33"}),
    ("chat", "/opt/vllm-0.33/", {"venv": "/opt/vllm-0.33"}),
    ("boxed", "ghcr.io/x/vllm@sha256:abc", {"image": "ghcr.io/x/vllm@sha256:abc", "engine": "podman"}),
    ("boxed", "/opt/vllm", {"venv": "/opt/vllm"}),
    ("notes", "/opt/new/llama-server", {"program": "/opt/new/llama-server"}),
]


@pytest.mark.parametrize(("model", "to", "wanted"), WAYS)
def test_a_build_is_a_name_a_path_or_an_image(model: str, to: str, wanted: dict[str, Any]) -> None:
    found = launch_for(FLEET, model, to)
    assert {key: found.get(key) for key in wanted} == wanted
    assert list(found.get("options", [])) == (["-e", "A=b"] if "image" in wanted else [])


NONE = [
    ("chat", "v34", "there is no build v34", "did you mean v3"),
    ("chta", "v33", "there is no model chta", "did you mean chat?"),
    ("chat", "ghcr.io/x/vllm:33", "is not launched from an image now", "builds: {NAME: {image: ghcr.io/x/vllm:33"),
]


@pytest.mark.parametrize(("model", "to", "said", "hint"), NONE)
def test_what_is_none_of_these_is_refused(model: str, to: str, said: str, hint: str) -> None:
    with pytest.raises(SpecError) as refused:
        launch_for(FLEET, model, to)
    assert said in refused.value.message and hint in str(refused.value.hint)


EDITS = [
    ("chat", {"venv": "/opt/new"}, "      venv: /opt/vllm   #", "      venv: /opt/new   #"),
    ("chat", {"build": "v33"}, "    launch:\n      venv: /opt/vllm   #", "    launch: {build: v33}   #"),
    ("named", {"build": "v33"}, "launch: {build: v32}}", "launch: {build: v33}}"),
    ("notes", {"program": "/opt/new"}, "launch: {program: /opt/llama-server}", "launch: {program: /opt/new}"),
    ("notes", {"image": "a b: c"}, "launch: {program: /opt/llama-server}", None),
    (
        "named",
        {"image": "x@sha256:1", "engine": "podman", "options": ["-e", "A=b, c"]},
        "launch: {build: v32}}",
        'launch: {image: x@sha256:1, engine: podman, options: ["-e", "A=b, c"]}}',
    ),
]


@pytest.mark.parametrize(("model", "launch", "old", "new"), EDITS)
def test_nothing_but_the_launch_of_the_model_changes(
    model: str, launch: dict[str, Any], old: str, new: str | None
) -> None:
    assert old in TEXT
    if new is None:
        with pytest.raises(SpecError, match="cannot be edited"):
            with_launch(TEXT, model, launch)
    else:
        assert with_launch(TEXT, model, launch) == TEXT.replace(old, new)


def test_a_launch_that_others_share_is_not_edited_under_their_feet() -> None:
    shared = TEXT.replace("launch: {program: /opt/llama-server}", "launch: &l {program: /opt/llama-server}").replace(
        "launch: {build: v32}", "runtime: llama.cpp, launch: *l"
    )
    shared = shared.replace("weights: /m/named", "weights: /m/named.gguf")
    with pytest.raises(SpecError, match="cannot be edited"):
        with_launch(shared, "notes", {"program": "/opt/new"})
    assert "runtime: llama.cpp, launch: {program: /opt/new}" in with_launch(shared, "named", {"program": "/opt/new"})


def test_a_build_that_does_not_exist_is_told_at_its_place() -> None:
    with pytest.raises(SpecError, match=r"models\.named\.launch\.build: there is no build \"v31\"; did you mean v3"):
        parse_fleet(TEXT.replace("{build: v32}", "{build: v31}"), "fleet.yaml")


BUILDS = TEXT.replace(
    "    chat: {copies: [a]}",
    "    chat: {copies: {a: {gpu_memory_utilization: 0.4}}}\n    named: {copies: {a: {gpu_memory_utilization: 0.3}}}",
)


@pytest.mark.parametrize(
    ("model", "to", "same"),
    [("chat", "v33", True), ("chat", "/opt/vllm-0.34", False), ("named", "v33", False), ("named", "v32", True)],
)
def test_an_upgrade_that_was_cut_off_is_told_from_one_to_another_build(model: str, to: str, same: bool) -> None:
    """The one that was cut off brought chat to v33."""
    nothing: Any = None
    before = Subject(parse_fleet(BUILDS, "fleet.yaml"), BUILDS, nothing)
    was: Any = SimpleNamespace(to_layout="one", release=wanted_release(upgraded(before, "chat", "v33", "f"), "one"))
    assert has_build(was, upgraded(before, model, to, "f"), model) is same


@pytest.mark.parametrize("flow", [False, True], ids=["block", "flow"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_a_model_whose_launch_comes_by_a_merge_gets_one_of_its_own(flow: bool, end: str) -> None:
    keys = ["<<: *b", "served_as: [q]"]
    model = f"  qwen: {{{', '.join(keys)}}}" if flow else "\n".join(["  qwen:", *(f"    {key}" for key in keys)])
    lines = [
        "fleet: f",
        "boxes: {a: {address: 10.0.0.1, memory: 128GiB, reserve: 16GiB}}",
        "proxy: {box: a}",
        "models:",
        "  base: &b {weights: /m, context: 8192, launch: {venv: /opt/v}, served_as: [b]}",
        model,
        "layouts: {r: {qwen: {copies: [a]}}}",
        "",
    ]
    text = "\n".join(lines).replace("\n", end)
    edited = with_launch(text, "qwen", {"venv": "/opt/new"})
    fleet = parse_fleet(edited, "fleet.yaml")
    assert [fleet.launch(name).model_dump()["venv"] for name in ("base", "qwen")] == ["/opt/v", "/opt/new"]
    assert edited.count("\n") == edited.count(end)


def test_a_file_that_could_not_be_written_in_the_end_is_told_in_the_beginning(tmp_path: Path) -> None:
    link = tmp_path / "fleet.yaml"
    link.symlink_to("/proc/self/fleet.yaml")
    with pytest.raises(SpecError, match=r"cannot be written.*nothing was changed"):
        refuse_unwritable(link)
    link.unlink()
    link.write_text("fleet: f\n")
    refuse_unwritable(link)
    assert [path.name for path in tmp_path.iterdir()] == ["fleet.yaml"]


@pytest.mark.parametrize("to", ["/", "//", "/a\nb", "/a\0b", "/a\u2028b"])
def test_a_path_that_is_none_is_said_to_be_none(to: str) -> None:
    with pytest.raises(SpecError, match="is no path"):
        launch_for(parse_fleet(TEXT, "fleet.yaml"), "chat", to)
