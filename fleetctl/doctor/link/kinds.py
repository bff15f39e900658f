"""The kinds of findings about the link between boxes."""

from __future__ import annotations

from fleetctl.doctor.finding import Kind, Severity

_NCCL = "NCCL user guide, Environment Variables"
_KERNEL = "Linux: Documentation/ABI/testing/sysfs-class-net, sysfs-class-infiniband"

ABSENT = Kind(
    "L01",
    Severity.ERROR,
    "the link address is not on the box",
    "a box whose `link:` address no interface of it has",
    "A split meets at the link address of its head, and every rank says that address of its own: no rank can bind it.",
    "Give the address to the interface of the link, and make it last (netplan); or correct `link:` in fleet.yaml.",
    "fleet.yaml reference: boxes, link",
)
OTHER_INTERFACE = Kind(
    "L02",
    Severity.ERROR,
    "interface: names another interface than the link's",
    "an `interface:` in fleet.yaml that the box does not have, or that does not have the link address",
    "NCCL and Gloo get it as NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME: they fail, or use the slow network.",
    "Write the interface that has the link address into fleet.yaml, and `fleetctl apply`.",
    _NCCL,
)
DOWN = Kind(
    "L03",
    Severity.ERROR,
    "the link is down",
    "an interface of the link that is off or has no carrier",
    "Nothing gets through: a split cannot start, and one that runs has lost its other half.",
    "Look at the cable and at the other end; `ip link set IF up` where it is off.",
    _KERNEL,
)
ROUTE = Kind(
    "L04",
    Severity.ERROR,
    "packets to the link address leave another way",
    "a link address of another box that is reached over another interface, or through a gateway",
    "The split then runs over the slow network, with nothing to show it but its speed.",
    "Have the link addresses of both boxes in one subnet that no other interface has.",
    "ip-route(8), `ip route get`",
)
TWICE = Kind(
    "L05",
    Severity.ERROR,
    "two machines have one address",
    "a link address that another machine answers for, or that another box has too",
    "Which machine gets a packet changes with every ARP answer: connections break at random.",
    "Take the address from the machine that it does not belong to.",
    "RFC 5227; arp answers seen on the interface of the link",
)
SILENT = Kind(
    "L06",
    Severity.ERROR,
    "the other box does not answer over the link",
    "a link address from which nothing comes back: no echo, no refused connection",
    "The ranks of a split cannot meet.",
    "Look at the addresses, the cable and the firewall of both ends.",
    "ICMP echo and TCP from the link address of the box",
)
FIREWALL = Kind(
    "L07",
    Severity.ERROR,
    "a firewall is between the ranks",
    "ports of the link address that are silent although the box answers: where the ranks meet, and those that the "
    "kernel chooses for NCCL and Gloo",
    "The ranks of a split meet at one port and then talk over many: it waits for ever, with no error.",
    "Let everything in that comes from the link addresses of the fleet.",
    "PyTorch: torch.distributed rendezvous; NCCL user guide: sockets",
)
MTU = Kind(
    "L08",
    Severity.WARNING,
    "the ends of the link have different MTUs",
    "interfaces of one link with different `mtu`",
    "Packets that are longer than the smaller one are dropped without a word: connections open, and then hang.",
    "Set the same MTU at both ends, and make it last (netplan).",
    "ip-link(8)",
)
FULL_SIZE = Kind(
    "L09",
    Severity.ERROR,
    "packets of full size do not get through",
    "a way on which small packets are answered and those as long as the MTU are not",
    "A split meets and then hangs with its first large message.",
    "Set the MTU of both ends, and of every switch between them, to one that passes.",
    "ICMP echo that nobody may divide (IP_PMTUDISC_PROBE)",
)
SLOW = Kind(
    "L10",
    Severity.WARNING,
    "the link is slower than it could be",
    "a speed that was negotiated lower than both ends can, ends that name different speeds, half duplex, and a link "
    "that is slower than the other network",
    "Every token of a split waits for the link.",
    "Seat or change the cable; see `ethtool IF`.",
    "ethtool(8); sysfs speed and duplex",
)
ERRORS = Kind(
    "L11",
    Severity.WARNING,
    "the link counts errors",
    "an interface of the link with more than one error in a million packets",
    "Packets that are lost cost a split far more than their share: everybody waits until they are sent again.",
    "Change the cable; see `ethtool -S IF`.",
    "Linux: Documentation/networking/statistics.rst",
)
ENVIRONMENT = Kind(
    "L12",
    Severity.WARNING,
    "a running engine was told another interface or address",
    "NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME, UCX_NET_DEVICES or VLLM_HOST_IP of a split that do "
    "not lead to the link (an error where the interface does not exist)",
    "The engine's ranks talk over the slow network, or cannot start.",
    "Take the variable out of `environment:`: fleetctl sets it from `interface:` and `link:`.",
    _NCCL,
)
UNNAMED = Kind(
    "L13",
    Severity.WARNING,
    "a split is not told which interface the link is",
    "a split on a box with a link of its own whose `interface:` is not in fleet.yaml",
    "NCCL and Gloo choose an interface by themselves: often the slow one, and not the same one on every box.",
    "Write `interface:` for the box.",
    _NCCL,
)
RDMA_DOWN = Kind(
    "L14",
    Severity.WARNING,
    "RDMA of the link is not active",
    "an RDMA port of the link's interface that is not ACTIVE while the interface has a carrier",
    "NCCL falls back to TCP sockets, which cost many times the latency.",
    "See `ibv_devinfo` and `dmesg | grep mlx5`; a reboot of the box or a new driver.",
    _KERNEL,
)
NO_GID = Kind(
    "L15",
    Severity.WARNING,
    "RDMA of the link has no RoCE v2 address",
    "an RDMA port over Ethernet without a RoCE v2 GID of the link address, and an NCCL_IB_GID_INDEX that is none",
    "RoCE v2 needs an IP address on the interface of the port: without one NCCL cannot connect over RDMA.",
    "Give the interface its address, and leave NCCL_IB_GID_INDEX out.",
    "NCCL user guide: NCCL_IB_GID_INDEX; sysfs gid_attrs/types",
)
IB_HCA = Kind(
    "L16",
    Severity.WARNING,
    "a running engine uses the wrong RDMA devices",
    "NCCL_IB_HCA that names no RDMA device of the link, or only one of the two that a port of a DGX Spark has (a "
    "note); NCCL_IB_DISABLE=1 although the link has RDMA (a note)",
    "NCCL then uses TCP, or half of the link: each of the two is one PCIe x4 way of about 100 Gbit/s.",
    "Name all RDMA devices of the link in NCCL_IB_HCA, in `environment:` of the placement.",
    "NCCL user guide: NCCL_IB_HCA; NVIDIA/dgx-spark-playbooks issue 102",
)
SMALL_MTU = Kind(
    "L17",
    Severity.NOTE,
    "a fast link with a small MTU",
    "an MTU below 9000 at both ends of a link of 100 Gbit/s or more",
    "RDMA packets then carry at most 1024 bytes in place of 4096, and TCP costs more CPU.",
    "Set `mtu: 9000` at both ends (netplan).",
    "NVIDIA/dgx-spark-playbooks issues 25 and 102",
)

KINDS = (
    ABSENT,
    OTHER_INTERFACE,
    DOWN,
    ROUTE,
    TWICE,
    SILENT,
    FIREWALL,
    MTU,
    FULL_SIZE,
    SLOW,
    ERRORS,
    ENVIRONMENT,
    UNNAMED,
    RDMA_DOWN,
    NO_GID,
    IB_HCA,
    SMALL_MTU,
)
