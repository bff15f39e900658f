#!/usr/bin/python3
"""Run one rank of an engine over several boxes, so that all ranks are one thing.

    rank.py --rank N --ranks M --head ADDRESS --port PORT --digest WORD [--health URL] … -- COMMAND…

The ranks meet over TCP at ADDRESS:PORT, which rank 0 (the head) listens on; nothing is loaded while they wait. Once all
are there and agree on the digest and the build, the head names an epoch and each rank starts its COMMAND with it in
FLEETCTL_EPOCH. From then on the ranks tell each other every second that they live. When one engine ends, or a rank is
silent or gone, every rank stops its engine and ends, systemd starts them again, and they meet in a new epoch.

Ends with 0 after SIGTERM, 75 when another rank was lost, 78 when the ranks do not agree, else with the engine's status
(1 where that is 0). Needs nothing but python3 (3.8) and rank_peer.py beside it.
"""

import argparse
import contextlib
import ctypes
import errno
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

sys.dont_write_bytecode = True  # /etc is no place for __pycache__
from rank_peer import BEAT, PROTOCOL, Peer, build, disagreement  # noqa: E402

PORT_TAKEN_LIMIT = 30.0  # seconds until a port in use is an error
# Seconds from SIGTERM to SIGKILL once a rank is lost: running requests cannot finish, and vLLM would wait for them.
BROKEN_STOP_LIMIT = 2.0
FAILED, LOST, DISAGREE = 1, 75, 78  # exit statuses


class Ended(Exception):  # noqa: N818 - not always an error
    """This rank has to end: why, and with which exit status."""

    def __init__(self, reason, status):
        super().__init__(reason)
        self.reason = reason
        self.status = status


class Rank:
    def __init__(self, options):
        self.options = options
        self.peers = []
        self.engine = None
        self.stop_asked = False
        self.healthy = threading.Event()
        self.ended = threading.Event()
        self.wake, self.wake_write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(self.wake_write, False)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _ask_stop(self, *_):
        self.stop_asked = True

    def log(self, text):
        # In one write: the engine writes to the same place, and must not get between a line and its end.
        sys.stderr.write("rank %d: %s\n" % (self.options.rank, text))
        sys.stderr.flush()

    def wait(self, things, seconds):
        """Those of ``things`` that can be read; returns early when a signal comes or the engine answers."""
        if self.stop_asked:
            raise Ended("asked to stop", 0)
        with selectors.DefaultSelector() as selector:
            for thing in [self.wake, *things]:
                selector.register(thing, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(seconds)]
        if self.wake in ready:
            ready.remove(self.wake)
            os.read(self.wake, 4096)
        if self.stop_asked:
            raise Ended("asked to stop", 0)
        return ready

    def tell_systemd(self, text):
        path = os.environ.get("NOTIFY_SOCKET")
        if path:
            address = "\0" + path[1:] if path.startswith("@") else path
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                try:
                    sock.sendto(text.encode(), address)
                except OSError as error:
                    self.log("cannot tell systemd %r: %s" % (text, error))

    def waiting(self, text):
        """Waiting for other boxes is no failure: the time to start begins when all ranks are there."""
        limit = int((self.options.load_limit + 30) * 1e6)
        self.tell_systemd("EXTEND_TIMEOUT_USEC=%d\nSTATUS=%s" % (limit, text))

    # ---- meeting

    def hello(self):
        return {
            "protocol": PROTOCOL,
            "rank": self.options.rank,
            "ranks": self.options.ranks,
            "digest": self.options.digest,
            "build": build(self.options.command[0]),
            "box": socket.gethostname(),
        }

    def listen(self):
        start, said = time.monotonic(), None
        while True:
            family = socket.AF_INET6 if ":" in self.options.head else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((self.options.head, self.options.port))
                listener.listen(16)
                listener.setblocking(False)
                return listener
            except OSError as error:
                listener.close()
                where = "%s port %d" % (self.options.head, self.options.port)
                if error.errno == errno.EADDRINUSE and time.monotonic() - start > PORT_TAKEN_LIMIT:
                    raise Ended("%s is taken by another process: see ss -ltnp" % where, FAILED) from error
                if str(error) != said:
                    said = str(error)
                    self.log("cannot listen on %s yet: %s" % (where, said))
            self.waiting("waiting for %s" % where)
            self.wait([], BEAT)

    def meet_as_head(self):
        """Wait for every other rank, name the epoch, and send it to all."""
        mine, listener, known, said = self.hello(), self.listen(), [], None
        while True:
            missing = sorted(set(range(1, self.options.ranks)) - {peer.rank for peer in known})
            if not missing:
                break
            if missing != said:
                said = missing
                self.log("waiting for rank %s on %s port %d" % (missing, self.options.head, self.options.port))
            self.waiting("waiting for rank %s" % missing)
            for thing in self.wait([listener, *known], BEAT):
                if thing is listener:
                    known.append(Peer(listener.accept()[0]))
                    continue
                try:
                    self.greet(mine, thing, known)
                except (OSError, ValueError) as error:
                    self.log("rank %s left the meeting: %s" % (thing.rank, error))
                    known.remove(thing)
                    thing.close()
            for peer in [p for p in known if time.monotonic() - p.heard > self.options.silence]:
                self.log("rank %s fell silent in the meeting" % peer.rank)
                known.remove(peer)
                peer.close()
            for peer in known:
                peer.beat()
        listener.close()
        self.peers = [peer for peer in known if peer.rank is not None]
        for peer in known:
            if peer.rank is None:
                peer.close()
        epoch = "%d-%s" % (time.time(), secrets.token_hex(4))
        for peer in self.peers:
            peer.tell("epoch", epoch=epoch)
        return epoch

    def greet(self, mine, peer, known):
        for message in peer.messages():
            if message.get("kind") != "hello":
                continue
            reason = disagreement(mine, message)
            if reason:
                for other in known:
                    other.tell("refuse", reason=reason)
                raise Ended(reason, DISAGREE)
            for older in [p for p in known if p.rank == message["rank"]]:
                known.remove(older)
                older.close()
            peer.rank = message["rank"]
            self.log("rank %d is here (%s)" % (peer.rank, message.get("box")))

    def meet_as_follower(self):
        """Find the head, and wait until it names the epoch."""
        said = None
        while True:
            where = "%s port %d" % (self.options.head, self.options.port)
            self.waiting("waiting for the head on %s" % where)
            try:
                peer = Peer(socket.create_connection((self.options.head, self.options.port), timeout=2), rank=0)
            except OSError as error:
                if str(error) != said:
                    said = str(error)
                    self.log("waiting for the head on %s: %s" % (where, said))
                self.wait([], BEAT / 2)
                continue
            said = None
            peer.tell("hello", **self.hello())
            try:
                epoch = self.named_epoch(peer)
            except (OSError, ValueError) as error:
                self.log("the head left the meeting: %s" % error)
                peer.close()
                self.wait([], BEAT / 2)
                continue
            self.peers = [peer]
            return epoch

    def named_epoch(self, peer):
        while True:
            self.waiting("waiting for the other ranks")
            if self.wait([peer], BEAT):
                messages = peer.messages()
                for number, message in enumerate(messages, start=1):
                    if message.get("kind") == "refuse":
                        raise Ended(str(message.get("reason")), DISAGREE)
                    if message.get("kind") == "epoch":
                        # A head that cannot start its engine says so right after, and run() is to hear of it.
                        peer.leave(messages[number:])
                        return str(message["epoch"])
            if time.monotonic() - peer.heard > self.options.silence:
                raise TimeoutError("silent for %g s" % self.options.silence)
            peer.beat()

    # ---- running

    def start(self, epoch):
        environment = dict(os.environ, FLEETCTL_EPOCH=epoch)
        environment.pop("NOTIFY_SOCKET", None)
        parent, libc = os.getpid(), ctypes.CDLL(None)

        def with_parent():
            # An engine does not outlive its rank, however that ends (PR_SET_PDEATHSIG).
            libc.prctl(1, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        try:
            self.engine = subprocess.Popen(
                self.options.command, env=environment, start_new_session=True, preexec_fn=with_parent
            )
        except OSError as error:
            raise Ended("cannot start %s: %s" % (self.options.command[0], error), FAILED) from error
        self.log("epoch %s: engine started as process %d" % (epoch, self.engine.pid))
        self.tell_systemd("STATUS=loading")

    def watch_health(self):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while not self.ended.is_set():
            try:
                with opener.open(self.options.health, timeout=2) as response:
                    if response.status == 200:
                        self.healthy.set()
                        # The other ranks are told at once: requests may be waiting for this engine.
                        os.write(self.wake_write, b"\0")
                        return
            except (OSError, ValueError):
                pass
            self.ended.wait(0.1)

    def run(self):
        """Watch over the engine and the other ranks until one of them ends. Always raises Ended."""
        start, is_ready = time.monotonic(), False
        if self.options.health:
            threading.Thread(target=self.watch_health, daemon=True).start()
        while True:
            readable = self.wait(self.peers, BEAT / 5)
            status = self.engine.poll()
            if status is not None:
                raise Ended("the engine ended with status %d" % status, FAILED if status <= 0 else status)
            for peer in [p for p in self.peers if p in readable or p.left]:
                try:
                    messages = peer.messages()
                except (OSError, ValueError) as error:
                    raise Ended("rank %d is gone: %s" % (peer.rank, error), LOST) from error
                for message in messages:
                    if message.get("kind") == "gone":
                        raise Ended("rank %d: %s" % (peer.rank, message.get("reason")), LOST)
                    if message.get("kind") == "ready":
                        self.healthy.set()
            for peer in self.peers:
                if time.monotonic() - peer.heard > self.options.silence:
                    raise Ended("rank %d is silent for %g s" % (peer.rank, self.options.silence), LOST)
                peer.beat()
            if self.healthy.is_set() and not is_ready:
                is_ready = True
                self.log("the engine answers after %.1f s" % (time.monotonic() - start))
                self.tell_systemd("READY=1\nSTATUS=serving")
                if self.options.rank == 0:
                    self.tell_all("ready")
            if not is_ready and self.options.health and time.monotonic() - start > self.options.load_limit:
                raise Ended("the engine did not answer within %g s" % self.options.load_limit, FAILED)

    def tell_all(self, kind, **fields):
        for peer in self.peers:
            peer.tell(kind, **fields)

    def stop_engine(self):
        """SIGTERM to the engine, SIGKILL to its whole process group at the limit, and to what it leaves behind."""
        if self.engine is None:
            return
        limit = self.options.stop_limit if self.stop_asked else min(self.options.stop_limit, BROKEN_STOP_LIMIT)
        if self.engine.poll() is None:
            self.engine.terminate()
            try:
                self.engine.wait(limit)
            except subprocess.TimeoutExpired:
                self.log("the engine did not end within %g s: killed" % limit)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.engine.pid, signal.SIGKILL)
        self.engine.wait()

    def main(self):
        try:
            epoch = self.meet_as_head() if self.options.rank == 0 else self.meet_as_follower()
            self.start(epoch)
            self.run()
        except Ended as end:
            self.log(end.reason)
            self.tell_systemd("STOPPING=1\nSTATUS=%s" % end.reason)
            # The others stop at once, at the same time as this one, and do not wait for its engine.
            self.tell_all("gone", reason=end.reason)
            for peer in self.peers:
                peer.close()
            self.ended.set()
            self.stop_engine()
            # systemd may have asked while the engine was being stopped: then this is an orderly end after all.
            return 0 if self.stop_asked else end.status


def read_options(argv):
    parser = argparse.ArgumentParser(prog="rank.py", description="Run one rank of an engine over several boxes.")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--head", required=True, help="address on which the head listens")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--digest", required=True, help="what has to be the same on every rank")
    parser.add_argument("--health", help="URL that answers 200 when the engine is ready (head only)")
    parser.add_argument("--silence", type=float, default=5.0, help="seconds without a word until a rank is lost")
    parser.add_argument("--load-limit", type=float, default=900.0, help="seconds from start to ready")
    parser.add_argument("--stop-limit", type=float, default=60.0, help="seconds from SIGTERM to SIGKILL")
    parser.add_argument("command", nargs="+", help="the engine's command line, after --")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(Rank(read_options(sys.argv[1:])).main())
