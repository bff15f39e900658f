"""Doctor's findings about boxes, from recorded outputs: nothing on well kept ones, and each symptom told apart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planned import COPY, GIB, TWO_PROXIES
from well_kept import (
    APT,
    DRIVER,
    LIMIT,
    MASKED,
    MODEL,
    NOBLE,
    NOW,
    SHOWN,
    VLLM,
    box_findings,
    box_told,
    disk,
    scene,
)

from fleetctl.doctor.box.clocks import offset_of
from fleetctl.doctor.box.settings import apt_values
from fleetctl.doctor.box.told import BoxTold, properties
from fleetctl.doctor.box.versions import driver_of, haproxy_of
from fleetctl.doctor.finding import Severity


def clock(ahead: float, way: float = 0.2) -> dict[str, float]:
    """Times of a box whose clock is ahead, and of the way to it and back."""
    return {
        "asked_at": NOW,
        "began": NOW + way + ahead,
        "ended": NOW + way + 1 + ahead,
        "answered_at": NOW + 2 * way + 1,
    }


def venv(**versions: str | None) -> dict[str, Any]:
    own = {**VLLM, **{name.replace("_", "-"): version for name, version in versions.items()}}
    known = {name: version for name, version in own.items() if version is not None}
    return {"venvs": {"/opt/vllm/bin/vllm": {"versions": known, "digest": "d1"}}}


def model(broken: tuple[str, ...] = (), **files: list[Any] | None) -> dict[str, Any]:
    own = {**MODEL, **{name.replace("__", "."): told for name, told in files.items()}}
    return {"models": {"/models/qwen": {"files": {n: t for n, t in own.items() if t is not None}, "broken": broken}}}


def upgrades(apt: str = APT, **more: Any) -> dict[str, Any]:
    return {"upgrades": {**box_told().upgrades.model_dump(), "apt": apt, **more}}


def sleep(**more: Any) -> dict[str, Any]:
    return {"sleep": {"targets": SHOWN, "states": ["freeze", "mem"], **more}}


WELL = scene()
LOOSE = "\n".join(line for line in APT.splitlines() if "nvidia" not in line) + "\n"
NO_FLEETCTL = [["/etc/needrestart/needrestart.conf", "$nrconf{verbosity} = 2;"]]
GDM = "Id=display-manager.service\nActiveState=active\n"


def test_well_kept_boxes_have_no_finding() -> None:
    for live in ("replicas", "split"):
        assert box_findings(box_told(), scene(live)) == []


@pytest.mark.parametrize(
    "told",
    [
        BoxTold(),
        box_told(gpus=None, driver=None, throttled=None, haproxy=None, venvs={}, images={}),
        box_told(venvs={"/opt/vllm/bin/vllm": None}, models={"/models/qwen": None}),
        box_told(timedatectl=None, os_release=None, upgrades={}),
        box_told(container=True, timedatectl="NTP=no\nNTPSynchronized=no\n", **sleep(states=["mem"])),
        box_told(**sleep(states=[])),
        box_told(disks=[disk("/models/qwen", free=0, read_only=True), disk("/srv", size=0, free=0, inodes=0)]),
        box_told(disks=[disk(free=30 * GIB)]),
        box_told(limits=[{"pid": 1, "line": "Max open files            unlimited            unlimited   files"}]),
        box_told(throttled={"rc": 2, "out": 'Field "clocks_event_reasons.hw_slowdown" is not a valid field to query.'}),
        box_told(throttled={"rc": 0, "out": "0, [N/A], [N/A], [N/A]\n"}),
    ],
    ids=[
        "nothing is known",
        "no GPU",
        "no engine yet",
        "no Debian",
        "a container",
        "it cannot sleep",
        "a read-only disk",
        "three percent of a large disk",
        "no limit",
        "an older nvidia-smi",
        "N/A",
    ],
)
def test_what_is_not_known_is_no_finding(told: BoxTold) -> None:
    assert [one for one in box_findings(told) if "driver" not in one.where] == []


# symptom: (what box a tells, code, box, words of the finding and of its fix)
SYMPTOMS: dict[str, tuple[dict[str, Any], str, str | None, str, str]] = {
    "a clock is a minute behind": (clock(-60.0), "B01", "a", "60.0 s behind that of b", "timedatectl set-ntp true"),
    "nothing keeps the clock right": (
        {"timedatectl": "CanNTP=yes\nNTP=no\nNTPSynchronized=no\n"},
        "B02",
        "a",
        "the clock of a is not synchronised, and NTP is off",
        "timedatectl set-ntp true",
    ),
    "a disk for models is nearly full": (
        {"disks": [disk("/"), disk("/models/qwen", free=8 * GIB)]},
        "B03",
        "a",
        "the disk of /models/qwen has 8.0 GiB free (1 %)",
        "du -xh --max-depth=1 /models/qwen",
    ),
    "a disk for images is full": (
        {"disks": [disk("/"), disk("/var/lib/docker", size=100 * GIB, free=0)]},
        "B03",
        "a",
        "the disk of /var/lib/docker has 0.0 GiB free (0 %)",
        "docker image prune",
    ),
    "no inodes are left": (
        {"disks": [disk(inodes=1_000_000, inodes_free=4)]},
        "B04",
        "a",
        "has 4 of 1,000,000 inodes free",
        "du --inodes",
    ),
    "an engine runs with the 1,024 open files that systemd gives": (
        {"limits": [{"pid": 4711, "unit": COPY, "line": LIMIT.replace("1048576", "1024")}]},
        "B05",
        "a",
        f"{COPY} may have 1,024 files open",
        f"systemctl show -p LimitNOFILE,DropInPaths {COPY}",
    ),
    "Driver/library version mismatch": (
        {
            "gpus": {
                "rc": 18,
                "out": "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.105\n",
            }
        },
        "B06",
        "a",
        "the driver was upgraded and the box not booted since",
        "systemctl reboot on a",
    ),
    "nvidia-smi could not communicate with the driver": (
        {
            "gpus": {
                "rc": 9,
                "out": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
                "the latest NVIDIA driver is installed and running.\n",
            }
        },
        "B06",
        "a",
        "NVIDIA-SMI has failed because it couldn't communicate",
        "journalctl -k -g NVRM on a",
    ),
    "nvidia-smi finds no GPU": (
        {"gpus": {"rc": 0, "out": "No devices were found\n"}},
        "B06",
        "a",
        "No devices were found",
        "systemctl reboot on a",
    ),
    "the GPU is too hot": (
        {"throttled": {"rc": 0, "out": "0, Not Active, Active, Not Active\n"}},
        "B07",
        "a",
        "the clocks of GPU 0 are held down by its temperature",
        "nvidia-smi -q -d PERFORMANCE",
    ),
    "drivers differ": (
        {"driver": DRIVER.replace("580.95.05", "580.126.09")},
        "B08",
        None,
        "the NVIDIA driver is 580.126.09 on a, 580.95.05 on b",
        "bring b to 580.126.09",
    ),
    "chat templates differ": (
        model(chat_template__jinja=[400, "ee"]),
        "B10",
        "b",
        "/models/qwen is not the same on b as on a: chat_template.jinja is not on b",
        "`fleetctl weights push qwen --from a --to b` sends what differs",
    ),
    "config.json has the same size and other words": (
        model(config__json=[1200, "zz"]),
        "B10",
        "b",
        "config.json has the same size and other words on b",
        "`fleetctl weights verify qwen --full`",
    ),
    "weights are not whole": (
        model(broken=("/models/qwen/model-00002-of-00002.safetensors has 12 bytes of 3000000000",)),
        "B11",
        "a",
        "the weights in /models/qwen are not whole: /models/qwen/model-00002",
        "`fleetctl weights push qwen --from b --to a` sends what is missing",
    ),
    "sleep targets are not masked": (
        sleep(),
        "B12",
        "a",
        "a may go to sleep, though nothing was seen that would send it there",
        "systemctl mask sleep.target suspend.target hibernate.target hybrid-sleep.target",
    ),
    "a desktop suspends at its login screen": (
        sleep(desktop=GDM),
        "B12",
        "a",
        "a desktop runs there, whose login screen does so",
        "systemctl mask",
    ),
    "logind suspends an idle box": (
        sleep(settings=[["/etc/systemd/logind.conf", "IdleAction", "suspend"]]),
        "B12",
        "a",
        "logind does so when nobody is at it (IdleAction=suspend)",
        "write IdleAction=ignore in /etc/systemd/logind.conf",
    ),
    "logind turns an idle box off, masked or not": (
        sleep(targets=MASKED, settings=[["/etc/systemd/logind.conf.d/x.conf", "IdleAction", "poweroff"]]),
        "B12",
        "a",
        "logind turns a off when nobody is at it",
        "write IdleAction=ignore in /etc/systemd/logind.conf.d/x.conf",
    ),
    "unattended-upgrades may replace the driver": (
        upgrades(LOOSE),
        "B13",
        "a",
        "unattended-upgrades may replace nvidia-driver-580-open on a",
        'Unattended-Upgrade::Package-Blacklist { "nvidia-"; "libnvidia-"; "linux-modules-nvidia-"; };',
    ),
    "unattended-upgrades boots the box": (
        upgrades(
            f'{APT}Unattended-Upgrade::Automatic-Reboot "true";\nUnattended-Upgrade::Automatic-Reboot-Time "02:00";\n'
        ),
        "B13",
        "a",
        "a boots itself after an upgrade that wants it (at 02:00)",
        "Automatic-Reboot",
    ),
    "needrestart of Ubuntu 24.04 restarts engines": (
        upgrades(nrconf=NO_FLEETCTL),
        "B13",
        "a",
        "needrestart restarts services of a after an upgrade of a library, engines too",
        "$nrconf{override_rc}{qr(^fleetctl-)} = 0;",
    ),
    "the journal is lost at a reboot": (
        {"journal": {"kept": False, "storage": [["/etc/systemd/journald.conf", "volatile"]]}},
        "B14",
        "a",
        "the journal of a is kept in memory and lost at a reboot: Storage=volatile",
        "write Storage=persistent in /etc/systemd/journald.conf",
    ),
    "a reboot is wanted": (
        {"reboot": ["linux-image-6.11.0-1020-nvidia", "linux-base"]},
        "B15",
        "a",
        "a wants to be booted again, for linux-image-6.11.0-1020-nvidia",
        "fleetctl drain a",
    ),
}


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_a_symptom_is_told_with_its_fix_and_nothing_else_is(symptom: str) -> None:
    told, code, box, says, fix = SYMPTOMS[symptom]
    found = box_findings(box_told(**told))
    assert [(one.code, one.box) for one in found] == [(code, box)], found
    assert says in found[0].says and fix in found[0].fix and found[0].evidence, found[0]


@pytest.mark.parametrize(
    ("live", "told", "what", "severity"),
    [
        ("split", venv(ray="2.44.1"), "ray", Severity.ERROR),
        ("split", venv(vllm="0.11.1"), "vllm", Severity.ERROR),
        ("split", venv(python="3.11"), "python", Severity.WARNING),
        ("split", {"kernel": "6.14.0-1015-nvidia"}, "the kernel", Severity.NOTE),
        ("replicas", venv(vllm="0.11.1"), "vllm", Severity.WARNING),  # the file has a split over them
        ("replicas", {"kernel": "6.14.0-1015-nvidia"}, "the kernel", Severity.NOTE),
    ],
)
def test_version_mismatch_the_cluster_was_started_with_is_found_before_it_is_started(
    live: str, told: dict[str, Any], what: str, severity: Severity
) -> None:
    (found,) = box_findings(box_told(**told), scene(live))
    assert (found.code, found.where, found.severity) == ("B08", what, severity)
    assert " on a, " in found.says and " on b" in found.says


def test_copies_alone_may_differ_for_a_note() -> None:
    only = scene(layouts={"replicas": {"qwen": {"copies": ["a", "b"]}}})
    (found,) = box_findings(box_told(**venv(vllm="0.11.1")), only)
    assert (found.severity, "copies of qwen" in found.says) == (Severity.NOTE, True)
    assert "on b: /opt/vllm/bin/python -m pip install vllm==0.11.1" in found.fix


def test_the_same_version_of_another_build_is_told() -> None:
    other = {"venvs": {"/opt/vllm/bin/vllm": {"versions": VLLM, "digest": "d2"}}}
    (found,) = box_findings(box_told(**other))
    assert (found.code, found.where) == ("B08", "the build of /opt/vllm/bin/vllm")


def test_a_model_of_the_hub_that_was_fetched_at_two_times_is_told_with_its_commits() -> None:
    seen = scene(models__qwen__weights="qwen/Qwen3-Next")
    told = [
        box_told(models={"qwen/Qwen3-Next": {"commit": commit * 20, "files": {"config.json": [1200, commit]}}})
        for commit in ("ab", "cd")
    ]
    assert box_findings(told[0], seen, told[0]) == []
    (found,) = box_findings(told[0], seen, told[1])
    assert (found.code, found.where) == ("B10", "qwen/Qwen3-Next")
    assert "commit abababababab is on a and cdcdcdcdcdcd on b, and 1 more" in found.says
    assert "write revision: COMMIT, the one that is right, for model qwen" in found.fix


def test_what_only_one_box_has_is_no_difference() -> None:
    assert box_findings(box_told(**venv(ray=None))) == []


def test_a_tag_that_is_another_image_on_the_other_box_is_told() -> None:
    image = "nvcr.io/nvidia/vllm:latest"
    seen = scene(models__qwen__launch={"image": image, "options": ["--gpus=all"]})
    told = [
        box_told(images={image: {"version": image, "digest": f"sha256:{one * 64}"}}, **upgrades(packages=[]))
        for one in "12"
    ]
    assert box_findings(told[0], seen, told[0]) == []
    (found,) = box_findings(told[0], seen, told[1])
    assert (found.code, found.where) == ("B09", image)
    assert f"`fleetctl images push {image} --from a b`, or on b: docker pull {image}" in found.fix
    assert f"`id: sha256:{'1' * 64}` beside image:" in found.fix


def test_two_proxies_with_different_haproxy_are_a_note() -> None:
    two = scene(proxy=TWO_PROXIES)
    older = box_told(haproxy="HA-Proxy version 2.0.33-0ubuntu0.1 2023/10/31 - https://haproxy.org/\n")
    (found,) = box_findings(older, two)
    assert (found.code, found.where, found.severity) == ("B08", "haproxy", Severity.NOTE)
    assert box_findings(older) == [], "where one box runs the proxy the other's does not matter"


@pytest.mark.parametrize(
    ("here", "there", "says"),
    [
        (clock(0.0), clock(1.5), None),
        (clock(0.0), clock(5.0, way=4.0), None),  # the way explains it
        (clock(0.0), clock(5.0), "the clock of b is 5.0 s ahead of that of a"),
        (clock(0.0), clock(-5.0), "the clock of b is 5.0 s behind that of a"),
        (clock(3600.0), clock(3600.5), "the boxes' clocks are 3600 s ahead of this machine's"),
        (clock(-3600.0), clock(-3600.5), "the boxes' clocks are 3600 s behind this machine's"),
        ({"asked_at": 0.0}, clock(5.0), None),
    ],
)
def test_clocks_are_compared_with_the_way_to_them_in_mind(
    here: dict[str, float], there: dict[str, float], says: str | None
) -> None:
    found = box_findings(box_told(**here), other=box_told(**there))
    assert [one.says for one in found] == ([says] if says else [])


def test_an_offset_is_what_ntp_would_reckon() -> None:
    offset = offset_of(box_told(**clock(2.5, way=0.25)))
    assert offset is not None and offset.by == pytest.approx(2.5) and offset.doubt == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("more", "codes"),
    [
        ({"unattended": False}, []),
        ({"timer": "Id=apt-daily-upgrade.timer\nLoadState=masked\nActiveState=inactive\n"}, []),
        ({"packages": ["hi |nvidia-driver-580-open|580.95.05"]}, []),
        ({"packages": ["ii |docker-ce|5:28"]}, []),  # no engine here is in a container
        ({"apt": APT.replace('Unattended-Upgrade "1"', 'Unattended-Upgrade "0"')}, []),
        ({"apt": LOOSE + 'Unattended-Upgrade::Package-Blacklist:: "(.*)*x+*";\n'}, ["B13"]),
        ({"apt": LOOSE + 'Unattended-Upgrade::Package-Blacklist:: "(a+)+$";\n'}, ["B13"]),
        ({"apt": LOOSE + 'Unattended-Upgrade::Package-Blacklist:: "nvidia-driver-.*";\n'}, []),
    ],
)
def test_who_upgrades_nothing_of_ours_is_left_alone(more: dict[str, Any], codes: list[str]) -> None:
    told = upgrades(**{"apt": LOOSE, **more})
    assert [one.code for one in box_findings(box_told(**told))] == codes


@pytest.mark.parametrize(
    ("release", "nrconf", "severity"),
    [
        (NOBLE, [["f", "$nrconf{restart} = 'l';"]], None),
        (NOBLE, [["f", "$nrconf{restart} = 'a';"]], Severity.WARNING),
        (NOBLE, [], Severity.NOTE),
        (NOBLE.replace("24.04", "22.04"), [], None),
        ('ID=debian\nVERSION_ID="12"\n', [["f", "$nrconf{restart} = 'a';"]], Severity.WARNING),
        ('ID=debian\nVERSION_ID="12"\n', [], None),
    ],
)
def test_needrestart_matters_where_it_acts_by_itself(
    release: str, nrconf: list[list[str]], severity: Severity | None
) -> None:
    found = box_findings(box_told(os_release=release, **upgrades(nrconf=nrconf)))
    assert [one.severity for one in found] == ([severity] if severity else [])


def test_a_desktop_that_was_told_not_to_sleep_is_only_a_note() -> None:
    calm = [["/etc/gdm3/greeter.dconf-defaults", "sleep-inactive-ac-type", "'nothing'"]]
    (found,) = box_findings(box_told(**sleep(desktop=GDM, greeter=calm)))
    assert found.severity is Severity.NOTE


def test_masking_can_be_taken_back_to_the_word() -> None:
    (found,) = box_findings(box_told(**sleep()))
    assert found.remedy is not None
    ((*do,),), ((*undo,),) = found.remedy.do, found.remedy.undo
    assert do[:2] == ["systemctl", "mask"] and undo[:2] == ["systemctl", "unmask"] and do[2:] == undo[2:]


def test_room_for_fleetctl_itself_is_an_error() -> None:
    (found,) = box_findings(box_told(disks=[disk("/etc/fleetctl", size=GIB, free=1_000_000)]))
    assert (found.code, found.severity) == ("B03", Severity.ERROR)


def test_models_of_a_live_split_that_differ_are_an_error() -> None:
    (found,) = box_findings(box_told(**model(config__json=[1, "x"])), scene("split"))
    assert (found.code, found.severity) == ("B10", Severity.ERROR)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (DRIVER, "580.95.05"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n", "535.183.01"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57  Release Build\n", "575.57"),
        ("", None),
        (None, None),
        ("NVRM version: ???\n", None),
    ],
)
def test_the_version_of_the_driver(text: str | None, version: str | None) -> None:
    assert driver_of(text) == version


def test_versions_of_haproxy_old_and_new() -> None:
    assert haproxy_of("HA-Proxy version 1.8.8-1ubuntu0.13 2022/09/06\n") == "1.8.8-1ubuntu0.13"
    assert haproxy_of("HAProxy version 2.6.12-1+deb12u3 2025/10/03 - https://haproxy.org/\n") == "2.6.12-1+deb12u3"
    assert haproxy_of("segfault") is None


@given(st.text(max_size=300))
def test_whatever_tools_print_is_read_without_a_traceback(text: str) -> None:
    assert isinstance(apt_values(text), dict) and isinstance(properties(text), dict)
    said = {"rc": 0, "out": text, "err": text}
    told = box_told(
        timedatectl=text,
        os_release=text,
        driver=text,
        gpus=said,
        throttled=said,
        haproxy=text,
        kernel="6.11.0-1016-nvidia",
        limits=[{"pid": 1, "line": text}],
        sleep={"targets": text, "desktop": text},
        upgrades={"unattended": True, "timer": text, "apt": text, "packages": [text], "nrconf": [[text, text]]},
    )
    for one in box_findings(told, WELL):
        assert one.says and one.fix
