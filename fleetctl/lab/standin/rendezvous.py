"""How the ranks of a split meet: rank 0 listens, followers connect, all compare flags, then load."""

import errno
import json
import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from . import VERSION, log
from .arguments import ServeArgs
from .process import Link
from .settings import Settings


class RendezvousError(RuntimeError):
    """The ranks did not come together; the message is what torch or vLLM prints."""


@dataclass(frozen=True)
class Hello:
    """What a rank says about itself when it connects."""

    rank: int
    flags: dict[str, object]


def agreed_flags(args: ServeArgs) -> dict[str, object]:
    """The values that must be the same on every rank."""
    return {
        "version": VERSION,
        "model": args.model,
        "max_model_len": args.max_model_len,
        "tensor_parallel_size": args.tensor_parallel_size,
        "pipeline_parallel_size": args.pipeline_parallel_size,
        "nnodes": args.nnodes,
        "kv_cache_dtype": args.kv_cache_dtype,
        "speculative_tokens": args.speculative_tokens,
        "max_num_seqs": args.max_num_seqs,
        "enforce_eager": bool(args.given.get("enforce_eager")),
    }


def listen(args: ServeArgs) -> socket.socket:
    """The listening socket of rank 0. Raises RendezvousError in torch's words when it cannot be had."""
    family = socket.AF_INET6 if ":" in args.master_addr else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((args.master_addr, args.master_port))
        server.listen(args.nnodes)
    except OSError as error:
        server.close()
        name = errno.errorcode.get(error.errno or 0, "EUNKNOWN")
        text = (error.strerror or str(error)).lower()
        raise RendezvousError(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
            f"network address. port: {args.master_port}, useIpv6: {str(family == socket.AF_INET6).lower()}, "
            f"code: -{error.errno}, name: {name}, message: {text}"
        ) from error
    return server


def gather(args: ServeArgs, settings: Settings, check: Callable[[], None]) -> dict[int, Link]:
    """Wait on rank 0 for all other ranks; their links by rank. `check` may raise to end the waiting.

    Raises RendezvousError when the port is taken, when `rendezvous_timeout` runs out, or when flags
    differ and `on_mismatch` is "fail". With "hang" it waits for ever, as the real ranks do.
    """
    server = listen(args)
    deadline = time.monotonic() + settings.rendezvous_timeout
    followers: dict[int, Link] = {}
    mine = agreed_flags(args)
    hanging = False
    try:
        while hanging or len(followers) < args.nnodes - 1:
            check()
            if not hanging and time.monotonic() > deadline:
                raise RendezvousError(
                    f"torch.distributed.DistStoreError: Timed out after {settings.rendezvous_timeout:.0f} "
                    f"seconds waiting for clients. {len(followers) + 1}/{args.nnodes} clients joined."
                )
            if not select.select([server], [], [], 0.1)[0]:
                continue
            link = Link(server.accept()[0])
            hello = greet(link)
            if hello is None:
                continue
            followers[hello.rank] = link
            differing = [name for name, value in mine.items() if hello.flags.get(name) != value]
            if differing and settings.on_mismatch == "fail":
                raise RendezvousError(
                    f"RuntimeError: Version mismatch: rank {hello.rank} was started with other values: "
                    + ", ".join(f"{n}={hello.flags.get(n)!r} (head: {mine[n]!r})" for n in differing)
                )
            hanging = hanging or bool(differing)
    finally:
        server.close()
    for link in followers.values():
        link.send(do="load")
    return followers


def greet(link: Link) -> Hello | None:
    """The first message of a new connection, or None if it is no rank (a port scan, a health check)."""
    try:
        messages = link.receive(2.0)
    except json.JSONDecodeError:
        messages = []
    if not messages or "rank" not in messages[0]:
        link.sock.close()
        return None
    rank, flags = messages[0]["rank"], messages[0]["flags"]
    if not isinstance(rank, int) or not isinstance(flags, dict):
        link.sock.close()
        return None
    return Hello(rank, flags)


def join(args: ServeArgs, settings: Settings, check: Callable[[], None]) -> Link:
    """Connect a follower to rank 0, again and again until it is there. `check` may raise to end that.

    Raises RendezvousError when `rendezvous_timeout` runs out. Returns before the head says "load".
    """
    deadline = time.monotonic() + settings.rendezvous_timeout
    warned = False
    while True:
        check()
        try:
            sock = socket.create_connection((args.master_addr, args.master_port), timeout=2.0)
        except OSError as error:
            if time.monotonic() > deadline:
                raise RendezvousError(
                    "torch.distributed.DistNetworkError: The client socket has timed out after "
                    f"{settings.rendezvous_timeout * 1000:.0f}ms while trying to connect to "
                    f"({args.master_addr}, {args.master_port})."
                ) from error
            if not warned:
                log.plain(
                    f"[W socket.cpp:764] [c10d] The client socket has failed to connect to "
                    f"[{args.master_addr}]:{args.master_port} (errno: {error.errno} - {error.strerror})."
                )
            warned = True
            time.sleep(0.1)
            continue
        sock.settimeout(None)
        link = Link(sock)
        link.send(rank=args.node_rank, flags=agreed_flags(args))
        return link
