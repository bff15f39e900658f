"""The link between boxes: what two ends say of it, and what is found in that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from planned import boxes_in, layout, office

from fleetctl.doctor.finding import Finding
from fleetctl.doctor.link.engines import chosen
from fleetctl.doctor.link.family import ask, find, links
from fleetctl.doctor.link.told import LinkTold
from fleetctl.doctor.scene import Scene
from fleetctl.onbox.examine_link import fastest, positive, rdma_ports

UNIT = "fleetctl-split-qwen.service"
NAME, TWIN = "enp1s0f0np0", "enP2p1s0f0np0"
MAC = {"a": "fc:4c:ea:00:00:0a", "b": "fc:4c:ea:00:00:0b"}
OTHER = {"a": "b", "b": "a"}
LINK = {"a": "10.1.0.1", "b": "10.1.0.2"}
Told = dict[str, Any]


def port(device: str, net: str, address: str) -> Told:
    """An RDMA port of a DGX Spark as /sys has it, with the GIDs of an interface that has an address."""
    mapped = "0000:0000:0000:0000:0000:ffff:" + "{:02x}{:02x}:{:02x}{:02x}".format(*map(int, address.split(".")))
    gids = [
        {"index": 0, "gid": "fe80:0000:0000:0000:fe4c:eaff:fe00:000a", "type": "IB/RoCE v1"},
        {"index": 1, "gid": "fe80:0000:0000:0000:fe4c:eaff:fe00:000a", "type": "RoCE v2"},
        {"index": 2, "gid": mapped, "type": "IB/RoCE v1"},
        {"index": 3, "gid": mapped, "type": "RoCE v2"},
    ]
    return {
        "device": device,
        "port": 1,
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "200 Gb/sec (4X HDR)",
        "link_layer": "Ethernet",
        "netdevs": [net],
        "gids": gids,
        "board": "fc4c:ea03:00f9:4230",
    }


def spark(box: str) -> Told:
    """A DGX Spark whose link is as it should be."""
    other = OTHER[box]
    fast = {"speed": 200000, "duplex": "full", "mtu": 9000, "packets": 10**9, "can": 200000, "pci": "0000:01:00.0"}
    return {
        "address": LINK[box],
        "peers": {other: LINK[other]},
        "interfaces": {
            "enP7s7": {
                "mtu": 1500,
                "mac": "02:00:00:00:00:0" + box,
                "addresses": {f"10.0.0.{'12'['ab'.index(box)]}": 24},
            }
            | {"speed": 10000, "duplex": "full"},
            NAME: {**fast, "mac": MAC[box], "addresses": {LINK[box]: 24}},
            TWIN: {**fast, "mac": MAC[box] + "f", "addresses": {}},
        },
        "interface": NAME,
        "heard": {LINK[box]: [], LINK[other]: [MAC[other]]},
        "ways": {
            other: {
                "route": {"dev": NAME, "gateway": None, "source": LINK[box]},
                "small": "yes",
                "full": "yes",
                "size": 9000,
                "ports": {29500: "refused", 29501: "refused"},
                "any_port": [41234, "refused"],
            }
        },
        "rdma": [port("rocep1s0f0", NAME, LINK[box]), port("roceP2p1s0f0", TWIN, "10.9.9.9")],
        "environment": {
            UNIT: {"NCCL_SOCKET_IFNAME": NAME, "GLOO_SOCKET_IFNAME": NAME, "VLLM_HOST_IP": LINK[box]},
        },
    }


def lab(box: str) -> Told:
    """A box whose link is its only interface, without RDMA: nothing of it is a fault."""
    told = spark(box)
    only = {"mtu": 1500, "mac": MAC[box], "speed": 10000, "duplex": "full", "packets": 1000}
    only["addresses"] = {**told["interfaces"]["enP7s7"]["addresses"], LINK[box]: 24}
    told |= {"interfaces": {"host0": only}, "interface": "host0", "rdma": [], "environment": {}}
    told["ways"][OTHER[box]]["route"]["dev"] = "host0"
    return told


def found(a: Told, b: Told | None, **changes: Any) -> list[Finding]:
    """Findings in what two boxes told; None: the second could not be asked."""
    changes = {"boxes__a__interface": NAME, "boxes__b__interface": NAME, **changes}
    live = layout("split", **changes)
    scene = Scene(office(**changes), (live,), live, boxes_in(live), {})
    told = {"a": LinkTold.model_validate(a)} | ({"b": LinkTold.model_validate(b)} if b else {})
    return [*find(scene, told)]


def put(path: str, value: Any) -> Callable[[Told], None]:
    """A change of one thing that a box told; ``interfaces/NAME/mtu`` is a path."""

    def change(told: Told) -> None:
        *folders, last = path.split("/")
        for folder in folders:
            told = told[int(folder) if folder.isdigit() and isinstance(told, list) else folder]
        told[last] = value

    return change


def also(*changes: Callable[[Told], None]) -> Callable[[Told], None]:
    def change(told: Told) -> None:
        for one in changes:
            one(told)

    return change


def no_address(told: Told) -> None:
    told["interfaces"][NAME]["addresses"] = {"10.1.0.77": 24}
    told.update(interface=None, heard=None, ways={"b": {"route": None}})


NOTHING: Callable[[Told], None] = lambda told: None  # noqa: E731
# What is wrong → change of a, change of b, code, box, severity, words of the fix.
FAULTS: dict[str, tuple[Callable[[Told], None], Callable[[Told], None], str, str | None, str, tuple[str, ...]]] = {
    "the address is not on the box": (
        no_address,
        NOTHING,
        "L01",
        "a",
        "error",
        (f"ip address add 10.1.0.1/24 dev {NAME}", "boxes: {a: {link: ADDRESS}}"),
    ),
    "no carrier": (
        put(f"interfaces/{NAME}/carrier", False),
        NOTHING,
        "L03",
        "a",
        "error",
        ("cable", f"ethtool {NAME}"),
    ),
    "switched off": (
        also(put(f"interfaces/{NAME}/carrier", False), put(f"interfaces/{NAME}/up", False)),
        NOTHING,
        "L03",
        "a",
        "error",
        (f"ip link set {NAME} up",),
    ),
    "the way leads over the slow network": (
        put("ways/b/route", {"dev": "enP7s7", "gateway": None, "source": "10.0.0.1"}),
        NOTHING,
        "L04",
        "a",
        "error",
        ("subnet",),
    ),
    "the way leads through a gateway": (
        put("ways/b/route", {"dev": NAME, "gateway": "10.1.0.254"}),
        NOTHING,
        "L04",
        "a",
        "error",
        ("subnet",),
    ),
    "another box has the address too": (
        put("heard", {"10.1.0.1": [MAC["b"]], "10.1.0.2": [MAC["b"]]}),
        put("interfaces/enP7s7/addresses", {"10.0.0.2": 24, "10.1.0.1": 24}),
        "L05",
        "b",
        "error",
        ("ip address del 10.1.0.1/24 dev enP7s7",),
    ),
    "a stranger has a's address": (
        put("heard", {"10.1.0.1": ["02:00:00:00:00:99"], "10.1.0.2": [MAC["b"]]}),
        NOTHING,
        "L05",
        "a",
        "error",
        ("02:00:00:00:00:99", "10.1.0.1"),
    ),
    "a and a stranger both answer b": (
        NOTHING,
        put("heard", {"10.1.0.2": [], "10.1.0.1": ["02:00:00:00:00:99", MAC["a"]]}),
        "L05",
        "a",
        "error",
        ("02:00:00:00:00:99",),
    ),
    "nothing comes back": (
        also(
            put("heard", {"10.1.0.1": [], "10.1.0.2": []}),
            put("ways/b/small", "silent"),
            put("ways/b/full", "silent"),
            put("ways/b/ports", {29500: "EHOSTUNREACH"}),
            put("ways/b/any_port", [41234, "silent"]),
        ),
        NOTHING,
        "L06",
        "a",
        "error",
        ("ip neigh show 10.1.0.2",),
    ),
    "the rendezvous port is silent": (
        NOTHING,
        put("ways/a/ports", {29500: "silent", 29501: "refused"}),
        "L07",
        "a",
        "error",
        ("on a", "ip saddr 10.1.0.2 accept"),
    ),
    "all but a few ports are silent": (
        put("ways/b/any_port", [41234, "silent"]),
        NOTHING,
        "L07",
        "b",
        "error",
        ("ufw allow from 10.1.0.1",),
    ),
    "different MTUs": (
        NOTHING,
        also(put(f"interfaces/{NAME}/mtu", 1500), put("ways/a/size", 1500)),
        "L08",
        "b",
        "warning",
        (f"ip link set {NAME} mtu 9000", "netplan"),
    ),
    "different MTUs, and long packets are lost": (
        put("ways/b/full", "silent"),
        put(f"interfaces/{NAME}/mtu", 1500),
        "L08",
        "b",
        "warning",
        ("mtu 9000",),
    ),
    "a switch that knows no jumbo frames": (put("ways/b/full", "silent"), NOTHING, "L09", "a", "error", ("switch",)),
    "negotiated less than both can": (
        put(f"interfaces/{NAME}/speed", 100000),
        put(f"interfaces/{NAME}/speed", 100000),
        "L10",
        "a",
        "warning",
        ("cable",),
    ),
    "ends that name different speeds": (
        NOTHING,
        put(f"interfaces/{NAME}/speed", 100000),
        "L10",
        "b",
        "warning",
        (f"ethtool {NAME}",),
    ),
    "half duplex": (put(f"interfaces/{NAME}/duplex", "half"), NOTHING, "L10", "a", "warning", ("autoneg",)),
    "errors": (
        put(f"interfaces/{NAME}/errors", {"rx_errors": 4000, "rx_crc_errors": 4000}),
        NOTHING,
        "L11",
        "a",
        "warning",
        (f"ethtool -S {NAME}",),
    ),
    "NCCL is told the slow interface": (
        put(f"environment/{UNIT}/NCCL_SOCKET_IFNAME", "enP7s7"),
        NOTHING,
        "L12",
        "a",
        "warning",
        ("take NCCL_SOCKET_IFNAME out", UNIT),
    ),
    "Gloo is told an interface that does not exist": (
        put(f"environment/{UNIT}/GLOO_SOCKET_IFNAME", "eth7"),
        NOTHING,
        "L12",
        "a",
        "error",
        ("take GLOO_SOCKET_IFNAME out",),
    ),
    "everything but the link": (
        put(f"environment/{UNIT}/NCCL_SOCKET_IFNAME", "^enp,enP2"),
        NOTHING,
        "L12",
        "a",
        "warning",
        ("NCCL_SOCKET_IFNAME",),
    ),
    "VLLM_HOST_IP of the slow network": (
        put(f"environment/{UNIT}/VLLM_HOST_IP", "10.0.0.1"),
        NOTHING,
        "L12",
        "a",
        "warning",
        ("take VLLM_HOST_IP out",),
    ),
    "an RDMA port that is down": (
        also(put("rdma/0/state", "1: DOWN"), put("rdma/0/phys_state", "3: Disabled")),
        NOTHING,
        "L14",
        "a",
        "warning",
        ("ibv_devinfo -d rocep1s0f0",),
    ),
    "no RoCE v2 GID of the address": (
        lambda told: told["rdma"][0].update(gids=told["rdma"][0]["gids"][:2]),
        NOTHING,
        "L15",
        "a",
        "warning",
        ("show_gids", "10.1.0.1"),
    ),
    "a GID index that is RoCE v1": (
        put(f"environment/{UNIT}/NCCL_IB_GID_INDEX", "2"),
        NOTHING,
        "L15",
        "a",
        "warning",
        ("take NCCL_IB_GID_INDEX out",),
    ),
    "an HCA of another port": (
        put(f"environment/{UNIT}/NCCL_IB_HCA", "rocep1s0f1"),
        NOTHING,
        "L16",
        "a",
        "warning",
        ("NCCL_IB_HCA: 'roceP2p1s0f0,rocep1s0f0'",),
    ),
    "one HCA of the two of a port": (
        put(f"environment/{UNIT}/NCCL_IB_HCA", "=rocep1s0f0:1"),
        NOTHING,
        "L16",
        "a",
        "note",
        ("roceP2p1s0f0",),
    ),
    "RDMA is switched off": (
        put(f"environment/{UNIT}/NCCL_IB_DISABLE", "1"),
        NOTHING,
        "L16",
        "a",
        "note",
        ("take NCCL_IB_DISABLE out",),
    ),
    "a small MTU at 200 Gbit/s": (
        put(f"interfaces/{NAME}/mtu", 1500),
        put(f"interfaces/{NAME}/mtu", 1500),
        "L17",
        None,
        "note",
        (f"ip link set {NAME} mtu 9000",),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_once_with_its_exact_fix(fault: str) -> None:
    of_a, of_b, code, box, severity, words = FAULTS[fault]
    a, b = spark("a"), spark("b")
    of_a(a)
    of_b(b)
    seen = found(a, b)
    assert {(finding.code, finding.box, finding.severity.value) for finding in seen} == {(code, box, severity)}, seen
    assert len({finding.says for finding in seen}) == len(seen)
    for word in words:
        assert word in seen[0].fix, seen[0].fix
    assert seen[0].evidence or code == "L01"


def test_nothing_is_found_on_links_that_are_well() -> None:
    assert found(spark("a"), spark("b")) == []
    assert found(lab("a"), lab("b"), boxes__a__interface="host0", boxes__b__interface="host0") == []
    assert found(lab("a"), lab("b"), boxes__a__interface=None, boxes__b__interface=None) == []


def quiet() -> Iterator[tuple[str, Callable[[Told], None]]]:
    """What cannot be known, or is as good as what is expected."""
    yield "no speed", put(f"interfaces/{NAME}/speed", None)
    yield "no ethtool", put(f"interfaces/{NAME}/can", None)
    yield "no RDMA", put("rdma", [])
    yield "nobody could be asked who has an address", put("heard", None)
    yield "echoes are not to be had", also(put("ways/b/small", "unknown"), put("ways/b/full", "unknown"))
    yield "echoes are refused, and ports answer", also(put("ways/b/small", "silent"), put("ways/b/full", "silent"))
    yield "somebody listens", put("ways/b/ports", {29500: "open"})
    yield "the twin answers too", put("heard", {"10.1.0.1": [MAC["a"] + "f"], "10.1.0.2": [MAC["b"], MAC["b"] + "f"]})
    yield "packets leave over the twin", put("ways/b/route", {"dev": TWIN})
    yield "a few errors in a billion packets", put(f"interfaces/{NAME}/errors", {"rx_errors": 12})
    yield "a prefix that means the link", put(f"environment/{UNIT}/NCCL_SOCKET_IFNAME", "enp")
    yield "all but docker", put(f"environment/{UNIT}/NCCL_SOCKET_IFNAME", "^docker,lo")
    yield "both HCAs", put(f"environment/{UNIT}/NCCL_IB_HCA", "rocep1s0f0,roceP2p1s0f0")
    yield "HCAs by prefix", put(f"environment/{UNIT}/NCCL_IB_HCA", "roce")
    yield "the right GID", put(f"environment/{UNIT}/NCCL_IB_GID_INDEX", "1")
    yield "UCX over the RDMA device", put(f"environment/{UNIT}/UCX_NET_DEVICES", "rocep1s0f0:1")
    yield "nothing runs", put("environment", {})
    yield (
        "the port next to it is not plugged in",
        lambda told: told["rdma"].append({**port("rocep1s0f1", "enp1s0f1np1", "10.9.9.9"), "state": "1: DOWN"}),
    )
    yield "GIDs that cannot be read", put("rdma/0/gids", [])


@pytest.mark.parametrize(("story", "change"), [*quiet()], ids=[story for story, _ in quiet()])
def test_what_is_unknown_or_well_is_no_fault(story: str, change: Callable[[Told], None]) -> None:
    a = spark("a")
    change(a)
    assert found(a, spark("b")) == []


def test_a_box_that_cannot_be_asked_is_no_fault_of_the_other() -> None:
    assert found(spark("a"), None) == []


def test_an_interface_in_the_file_that_is_not_the_links_is_named() -> None:
    seen = found(spark("a"), spark("b"), boxes__a__interface="enP7s7")
    assert [(one.code, one.box) for one in seen] == [("L02", "a")]
    assert f"boxes: {{a: {{interface: {NAME}}}}}" in seen[0].fix
    (missing,) = found(spark("a"), spark("b"), boxes__a__interface="eth9")
    assert "no interface eth9" in missing.says


def test_a_split_that_is_not_told_its_interface_is_found_where_the_link_is_another_one() -> None:
    seen = found(spark("a"), spark("b"), boxes__a__interface=None)
    assert [(one.code, one.box) for one in seen] == [("L13", "a")]
    own = {"NCCL_SOCKET_IFNAME": NAME, "GLOO_SOCKET_IFNAME": NAME}
    assert found(spark("a"), spark("b"), boxes__a__interface=None, models__qwen__environment=own) == []


def test_boxes_without_a_link_and_without_a_split_are_not_asked() -> None:
    apart = office(layouts={"replicas": {"qwen": {"copies": ["a", "b"]}}}, boxes__a__link=None, boxes__b__link=None)
    assert links(apart) == {}
    assert links(office(boxes__a__link=None, boxes__b__link=None)) == {"a": "10.0.0.1", "b": "10.0.0.2"}


def test_a_firewall_between_boxes_that_share_no_split_is_none_of_our_business() -> None:
    a = spark("a")
    put("ways/b/any_port", [41234, "silent"])(a)
    put("environment", {})(a)
    live = layout("replicas", layouts={"replicas": {"qwen": {"copies": ["a", "b"]}}})
    fleet = office(
        layouts={"replicas": {"qwen": {"copies": ["a", "b"]}}}, boxes__a__interface=NAME, boxes__b__interface=NAME
    )
    scene = Scene(fleet, (live,), live, boxes_in(live), {})
    assert [*find(scene, {"a": LinkTold.model_validate(a), "b": LinkTold.model_validate(spark("b"))})] == []


def test_only_ports_on_which_nobody_listens_are_knocked_at() -> None:
    live = layout("split")
    there = {"pid": 7, "comm": "python3", "unit": UNIT, "engine": None}
    scene = Scene(office(), (live,), live, boxes_in(live, a={"ports": {29500: there}}), {})
    assert ask(scene, "b") == {"own": "10.1.0.2", "peers": {"a": "10.1.0.1"}, "ports": {"a": [29501]}, "units": [UNIT]}
    asked = ask(scene, "a")
    assert asked is not None and asked["ports"] == {}


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth0", ["eth0"]),
        ("=eth0,ib0", ["eth0", "ib0"]),
        ("^eth", ["ib0", "lo"]),
        ("^=eth0", ["eth1", "ib0", "lo"]),
        ("wlan", []),
        ("=et", []),
    ],
)
def test_lists_are_read_as_nccl_reads_them(value: str, names: list[str]) -> None:
    assert chosen(value, ["eth0", "eth1", "ib0", "lo"]) == names


def test_the_fastest_mode_of_ethtool_and_numbers_that_are_none() -> None:
    said = (
        "Settings for enp1s0f0np0:\n\tSupported link modes:   10000baseKR/Full\n\t                        "
        "200000baseCR4/Full\n"
        "\tSupported pause frame use: Symmetric\n\tAdvertised link modes:  400000baseCR8/Full\n"
    )
    assert fastest(said) == 200000
    assert fastest("Settings for lo:\n\tLink detected: yes\n") is None
    assert [positive(text) for text in ("200000", "-1", "", "4294967295", "0")] == [200000, None, None, None, None]


def test_rdma_ports_are_read_from_sys(tmp_path: Path) -> None:
    one = tmp_path / "rocep1s0f0" / "ports" / "1"
    for path, text in {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "200 Gb/sec (4X HDR)",
        "link_layer": "Ethernet",
        "gids/0": "fe80:0000:0000:0000:fe4c:eaff:fe00:000a",
        "gids/1": "0000:0000:0000:0000:0000:0000:0000:0000",
        "gids/3": "0000:0000:0000:0000:0000:ffff:0a01:0001",
        "gid_attrs/types/0": "IB/RoCE v1",
        "gid_attrs/types/3": "RoCE v2",
        "gid_attrs/ndevs/0": NAME,
    }.items():
        (one / path).parent.mkdir(parents=True, exist_ok=True)
        (one / path).write_text(text + "\n")
    (seen,) = rdma_ports(str(tmp_path))
    assert seen["device"] == "rocep1s0f0" and seen["netdevs"] == [NAME] and seen["state"] == "4: ACTIVE"
    assert [(gid["index"], gid["type"]) for gid in seen["gids"]] == [(0, "IB/RoCE v1"), (3, "RoCE v2")]
    assert rdma_ports(str(tmp_path / "nothing")) == []
