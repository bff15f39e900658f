"""Weights from one box to another: the op of the box that has them, and that of the box that wants them."""

import grp
import os
import pwd
import socket
import stat
import threading
import time
from typing import Any, Dict, List, Optional

from fleetctl.onbox.arrival import Goal, dump, load
from fleetctl.onbox.limited_places import SYSTEMS
from fleetctl.onbox.main import Call, CancelledError, OpError, op
from fleetctl.onbox.manifests import read_manifest, touched
from fleetctl.onbox.partstaking import Taking
from fleetctl.onbox.partsums import behind
from fleetctl.onbox.partswire import Pace, RefusedError, greet, serve_parts
from fleetctl.onbox.weightplaces import Place, blob_of, place_of, refs_of, safe

AWAITED = 60.0  # seconds in which the other end has to come
CONNECT = 5.0


@op("weights_goal")
def weights_goal(call: Call, place: Dict[str, Any]) -> Goal:
    """What another box has to have to have the same: files with checksums, mode and name in the cache, refs, owner.

    OpError where this box has no manifest, or files changed since.
    """
    found = place_of(place)
    manifest = read_manifest(found) if found is not None else None
    if found is None or manifest is None or touched(found, manifest):
        raise OpError("the weights here are not proven: `fleetctl weights verify` says what is wrong")
    return goal_of(found, manifest)


def goal_of(place: Place, manifest: Dict[str, Any]) -> Goal:
    """The goal of a place whose manifest is right."""
    refuse_links_out(place, list(manifest["files"]))
    first = os.stat(place.path(sorted(manifest["files"])[0]))
    folder = os.stat(place.root)
    return {
        "commit": place.commit,
        "refs": refs_of(place),
        "one_file": bool(place.only),
        "owner": "%s:%s" % (_name(pwd.getpwuid, first.st_uid), _name(grp.getgrgid, first.st_gid)),
        "folder_mode": stat.S_IMODE(folder.st_mode) | 0o500,
        "tree": manifest["tree"],
        "files": {
            name: dict(one, mode=stat.S_IMODE(os.stat(place.path(name)).st_mode) & 0o777, blob=blob_of(place, name))
            for name, one in manifest["files"].items()
        },
    }


def refuse_links_out(place: Place, names: List[str]) -> None:
    """OpError for a file that is a link to where the system is: whose folder it is need not be allowed to read that."""
    home = os.path.realpath(place.repository or place.root) + "/"
    for name in names:
        path = os.path.realpath(place.path(name))
        if not path.startswith(home) and SYSTEMS.match(path):
            raise OpError("%s is a link to %s, which is no weights: nothing is sent" % (place.path(name), path))


def _name(ask_for: Any, number: int) -> str:
    try:
        return str(ask_for(number)[0])
    except KeyError:
        return "root"


@op("weights_serve")
def weights_serve(
    call: Call, place: Dict[str, Any], own: str, peer: str, key: str, streams: int, limit: Optional[float]
) -> Dict[str, Any]:
    """Send parts of the files at a place to one peer, which calls. The event ``port`` says where this listens.

    It listens on one address, for as long as the transfer takes; whoever is not the peer, or does not know the key,
    is turned away. ``limit`` in bytes/s. Returns ``sent`` bytes, and who was ``refused``.
    """
    found = place_of(place)
    manifest = read_manifest(found) if found is not None else None
    if found is None or manifest is None:
        raise OpError("the weights here are not proven")
    refuse_links_out(found, list(manifest["files"]))
    paths = [found.path(name) for name in sorted(manifest["files"])]
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    try:
        listener = socket.create_server((own, 0), family=family, backlog=streams + 4)
    except OSError as error:
        raise OpError("cannot listen on %s: %s" % (own, error.strerror or error)) from None
    count = _Count()
    pace = Pace(limit)
    with listener:
        call.event(port=listener.getsockname()[1])
        refused = _accept(call, listener, peer, key, streams, lambda sock: _attend(call, sock, paths, pace, count))
    if count.failed is not None:
        raise OpError("sending to %s broke off: %s" % (peer, count.failed))
    return {"sent": count.total, "refused": refused}


class _Count:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.total = 0
        self.failed: Optional[BaseException] = None

    def add(self, count: int) -> None:
        with self._lock:
            self.total += count


def _attend(call: Call, sock: socket.socket, paths: List[str], pace: Pace, count: _Count) -> None:
    if pace.rate is not None:
        behind()  # something serves here
    try:
        serve_parts(call, sock, paths, pace, count.add)
    except (ConnectionError, CancelledError):
        pass  # the other end went away, or is not wanted any more; it knows better why
    except (OSError, OpError, ValueError, KeyError, RefusedError) as error:
        count.failed = error


def _accept(call: Call, listener: socket.socket, peer: str, key: str, streams: int, work: Any) -> List[str]:
    """Have ``work`` done on so many connections of the peer, each in a thread. Who else came is returned."""
    listener.settimeout(0.2)
    refused: List[str] = []
    threads: List[threading.Thread] = []
    end = time.monotonic() + AWAITED
    while len(threads) < streams and time.monotonic() < end and not call.cancelled.is_set():
        try:
            sock, who = listener.accept()
        except OSError:
            continue
        if who[0] != peer:
            refused.append(str(who[0]))
            sock.close()
            continue
        try:
            greet(sock, key, listens=True)
        except (OSError, RefusedError):
            refused.append(str(who[0]))
            sock.close()
            continue
        thread = threading.Thread(target=_with, args=(sock, work), daemon=True)
        threads.append(thread)
        thread.start()
    if len(threads) < streams:
        call.check()
        raise OpError("%s did not call within %d s" % (peer, AWAITED))
    listener.close()
    for thread in threads:
        thread.join()
    return refused[:10]


def _with(sock: socket.socket, work: Any) -> None:
    with sock:
        work(sock)


@op("weights_receive")
def weights_receive(
    call: Call, place: Dict[str, Any], goal: Dict[str, Any], ends: Dict[str, Any], key: str, streams: int
) -> Dict[str, Any]:
    """Have the parts that a begun transfer wants, from a peer that serves them, each proven as it comes.

    ``goal`` has the ``commit`` and whether it is ``one_file``; ``ends`` the addresses ``own`` and ``peer``, the peer's
    ``port``, and ``gentle`` where an engine serves, whose threads come first then. With port 0 this end listens (the
    event ``port``) and the peer calls. Returns ``received`` bytes, those of parts that came twice included.
    """
    where = place_of(place, safe(goal["commit"]) if "repo" in place else "", file=goal["one_file"])
    if where is None:
        raise OpError("no revision was named for %s" % place["repo"])
    jobs = [(job[0], job[1], job[2]) for job in load(where, "jobs.json")]
    taking = Taking(call, where, load(where, "goal.json"), jobs, bool(ends.get("gentle")))
    streams = min(streams, len(jobs))
    try:
        if ends["port"]:
            _call(ends, key, streams, taking.stream)
        elif jobs:
            family = socket.AF_INET6 if ":" in ends["own"] else socket.AF_INET
            with socket.create_server((ends["own"], 0), family=family) as listener:
                call.event(port=listener.getsockname()[1])
                _accept(call, listener, ends["peer"], key, streams, taking.stream)
    finally:
        taking.close()
    call.check()
    if taking.failed is not None:
        raise OpError("receiving from %s broke off: %s" % (ends["peer"], taking.failed)) from None
    dump(os.path.join(where.staging, "jobs.json"), [])
    return {"received": taking.progress.done, "parts": len(jobs)}


def _call(ends: Dict[str, Any], key: str, streams: int, work: Any) -> None:
    """Have ``work`` done on so many connections to the peer."""
    socks: List[socket.socket] = []
    try:
        for _ in range(streams):
            socks.append(_connected(ends["own"], ends["peer"], ends["port"], key))
    except BaseException:
        for sock in socks:
            sock.close()
        raise
    threads = [threading.Thread(target=_with, args=(sock, work), daemon=True) for sock in socks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _connected(own: str, peer: str, port: int, key: str) -> socket.socket:
    try:
        sock = socket.create_connection((peer, port), CONNECT, (own, 0))
    except OSError as error:
        raise OpError(
            "cannot reach port %d of %s from %s: %s (a firewall between the boxes has to let them through)"
            % (port, peer, own, error.strerror or "no answer")
        ) from None
    try:
        greet(sock, key, listens=False)
    except (OSError, RefusedError):
        sock.close()
        raise OpError("%s did not prove that it is the box that was to send" % peer) from None
    return sock
