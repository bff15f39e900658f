"""Asking another machine over a link: who has an address, does a packet of full size come back, is a port answered."""

import contextlib
import errno
import os
import select
import socket
import struct
import time
from typing import Any, Dict, List, Optional

ARP_WAIT = 0.8  # seconds for everybody who has an address to say so
ARP_TWICE = 0.3  # seconds until it is asked once more
ECHO_WAIT = 0.7  # seconds for an echo
ECHO_TRIES = 2
PORT_WAIT = 1.5  # seconds until a port counts as silent: a first SYN that was lost is sent again after one
ETHERTYPE_ARP = 0x0806
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3  # Linux: never fragment, whatever was learnt of the way before
HEADERS = 28  # bytes of IP and ICMP


def who_has(interface: str, mac: str, source: str, wanted: List[str]) -> Optional[Dict[str, List[str]]]:
    """IPv4 address → hardware addresses that answer for it on an Ethernet interface; None: it cannot be asked there.

    For ``source`` itself the question names no sender (RFC 5227): whoever answers has the address too.
    """
    hardware = bytes.fromhex(mac.replace(":", ""))
    if len(hardware) != 6 or not wanted:
        return None
    found: Dict[str, List[str]] = {address: [] for address in wanted}
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE_ARP)) as sock:
            sock.bind((interface, ETHERTYPE_ARP))
            end, again = time.monotonic() + ARP_WAIT, 0.0
            asked = 0
            while time.monotonic() < end:
                if asked < 2 and time.monotonic() >= again:
                    for address in wanted:
                        sock.send(_question(hardware, "0.0.0.0" if address == source else source, address))
                    asked, again = asked + 1, time.monotonic() + ARP_TWICE
                if select.select([sock], [], [], 0.05)[0]:
                    _take_answer(sock.recv(2048), hardware, found)
    except (OSError, AttributeError):
        return None
    return {address: sorted(answers) for address, answers in found.items()}


def _question(hardware: bytes, source: str, wanted: str) -> bytes:
    ethernet = b"\xff" * 6 + hardware + struct.pack("!H", ETHERTYPE_ARP)
    kind = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1)
    return ethernet + kind + hardware + socket.inet_aton(source) + b"\0" * 6 + socket.inet_aton(wanted)


def _take_answer(frame: bytes, own: bytes, found: Dict[str, List[str]]) -> None:
    if len(frame) < 42 or struct.unpack("!HHHBBH", frame[12:22]) != (ETHERTYPE_ARP, 1, 0x0800, 6, 4, 2):
        return
    hardware, address = frame[22:28], socket.inet_ntoa(frame[28:32])
    text = ":".join("%02x" % byte for byte in hardware)
    if hardware != own and address in found and text not in found[address]:
        found[address].append(text)


def echo(own: str, peer: str, size: int) -> str:
    """Whether an IPv4 packet of ``size`` bytes (headers included), which nobody may divide, comes back.

    ``yes``; ``silent``; the kernel's word where it could not be sent (EMSGSIZE: too long for this box's own interface);
    ``unknown`` where such packets cannot be made.
    """
    try:
        sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    except OSError:
        return "unknown"
    identity = struct.unpack("!H", os.urandom(2))[0]
    with sock:
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        try:
            sock.bind((own, 0))
            for number in range(ECHO_TRIES):
                sock.sendto(_echo_request(identity, number, size - HEADERS), (peer, 0))
                if _echoed(sock, identity):
                    return "yes"
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, "silent")
    return "silent"


def _echo_request(identity: int, number: int, payload: int) -> bytes:
    body = b"fleetctl" * (max(0, payload) // 8 + 1)
    packet = struct.pack("!BBHHH", 8, 0, 0, identity, number) + body[: max(0, payload)]
    return packet[:2] + struct.pack("!H", _checksum(packet)) + packet[4:]


def _checksum(packet: bytes) -> int:
    padded = packet + b"\0" * (len(packet) % 2)
    total: int = sum(struct.unpack("!%dH" % (len(padded) // 2), padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def _echoed(sock: socket.socket, identity: int) -> bool:
    end = time.monotonic() + ECHO_WAIT
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([sock], [], [], left)[0]:
            return False
        packet = sock.recv(65535)
        begin = (packet[0] & 0x0F) * 4 if packet else 0
        answer = packet[begin : begin + 8]
        if len(answer) == 8 and answer[0] == 0 and struct.unpack("!H", answer[4:6])[0] == identity:
            return True


def knock(own: str, peer: str, port: int) -> str:
    """What a TCP connection gets: ``open``, ``refused`` (nobody listens there), ``silent`` or an errno."""
    try:
        with contextlib.closing(socket.create_connection((peer, port), PORT_WAIT, (own, 0))):
            return "open"
    except ConnectionRefusedError:
        return "refused"
    except OSError as error:  # socket.timeout is one, and has no errno
        return errno.errorcode.get(error.errno, "silent") if error.errno else "silent"


def resolved(name: str) -> Optional[str]:
    """The IP address of a name, or the address itself; None: it is not known here."""
    try:
        found: List[Any] = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    return str(found[0][4][0]) if found else None
