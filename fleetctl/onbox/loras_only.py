"""The program on a box for somebody who may bring and remove LoRA adapters, and nothing else.

It is started by a forced command of sshd with root's rights (docs/lora.md), whatever the client asks to run, and speaks
as the whole program does; the source that a client sends is read and thrown away. Of the ops only those of OPS are
there, each with its arguments looked at: nothing here runs a command, reads a file that is named, or touches a move
that is not about adapters. The journal of such a move is later read by operators who may do everything: so the plan in
it is taken only with steps about adapters, and the release in it is always the one that this box keeps itself.
"""

import os
import re
import shutil
import sys
from typing import Any, Callable, Dict, List

from fleetctl.onbox import journal, kept, lock
from fleetctl.onbox.adapters import DIGEST, MOVE, SPARE, checked_files, named
from fleetctl.onbox.main import OpError, Program, take_over_streams

SOCKET = "/run/fleetctl-proxy/admin.sock"
OPERATIONS = ("lora push", "lora remove")
STEPS = ("preflight", "send_adapters", "note_adapters", "drop_adapters", "load_adapters", "unload_adapters",
         "name_adapters", "unname_adapters")  # fmt: skip
UNIT = re.compile(r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]{0,254}")
TOKENS = "/run/fleetctl-loras-tokens"  # of locks and claims that such users took since the box booted
TOKENS_KEPT = 200
TOKEN = re.compile(r"[0-9a-f]{16}")
LONGEST_FIRST_LINE = 8 * 1024 * 1024  # bytes of the source that a client sends
STALE = 15.0  # seconds without a word after which a lock may be taken over

Args = Dict[str, Any]


class NotAllowedError(OpError):
    """What was asked for is not for this user."""


def _refuse(what: str) -> None:
    raise NotAllowedError("this user may bring and remove LoRA adapters and nothing else: %s" % what)


def _live() -> Dict[str, Any]:
    number = kept.current_generation()
    return kept.generation_release(number) if number is not None else {}


def _facts(args: Args) -> None:
    # Whatever else can be asked for some day is nothing that a push needs.
    plain = not any(value for key, value in args.items() if key not in ("foreign", "units", "socket_path"))
    units = [unit for key in ("foreign", "units") for unit in args.get(key, [])]
    if not plain or args.get("socket_path") != SOCKET or not all(UNIT.fullmatch(str(unit)) for unit in units):
        _refuse("facts of other things")


def _engines_of(live: Dict[str, Any]) -> List[Dict[str, Any]]:
    """All engines of a release, those of a pool among them."""
    return [*live.get("engines", []), *(one["engine"] for one in (live.get("pool") or {}).get("lodgers", []))]


def _checkpoint(args: Args) -> None:
    if args.get("path") not in [engine["weights"] for engine in _engines_of(_live())]:
        _refuse("files of %r" % (args.get("path"),))


def _engine(args: Args) -> None:
    """It is an engine of what this box keeps as live: no other address is asked anything."""
    for engine in _engines_of(_live()):
        known = (engine["ranks"][0]["unit"], engine["address"], engine["port"], engine["model"])
        if known == (args.get("unit"), args.get("address"), args.get("port"), args.get("model", engine["model"])):
            return
    _refuse("no engine of the live layout: %r" % (args.get("unit"),))


def _engines(args: Args) -> None:
    for one in args.get("engines", []):
        _engine(one)


def _socket(args: Args) -> None:
    if args.get("path") != SOCKET:
        _refuse("another proxy")
    asked = args.get("gateway")
    if asked is not None:
        services = (_live().get("pool") or {}).get("services", [])
        known = [(one["address"], one["port"]) for one in services if one["kind"] == "gateway"]
        if (asked["address"], asked["port"]) not in known:
            _refuse("no gateway of the live layout")


def _tokens() -> List[str]:
    try:
        with open(TOKENS, encoding="ascii") as source:
            return source.read().split()
    except FileNotFoundError:
        return []


def _own(token: Any, *, begin: bool) -> None:
    """A lock or claim of this user's: to know the token of somebody else's is not enough to act as its holder."""
    known = _tokens()
    if token in known:
        return
    holders = [(lock.lock_state() or {}).get("token"), lock.read_claim().get("token")]
    if not begin or not TOKEN.fullmatch(str(token)) or token in holders:
        _refuse("to act for another holder of the fleet")
    with os.fdopen(os.open(TOKENS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as out:
        out.write("\n".join([*known, str(token)][-TOKENS_KEPT:]) + "\n")


def _take(args: Args) -> None:
    """A lock that somebody holds who is there is not taken over by this user."""
    found = lock.lock_state()
    held = found is not None and (found["connected"] or found["silent"] < STALE)
    if args.get("instead_of") and found is not None and held and found["token"] not in _tokens():
        _refuse("to take the fleet from %s" % found["who"])
    _own(args["holder"]["token"] if "holder" in args else args["token"], begin=True)


def _hold(args: Args) -> None:
    _own(args["token"], begin=False)


def _begin(args: Args) -> None:
    named(args.get("move"), "move", MOVE)
    if args.get("operation") not in OPERATIONS:
        _refuse("to begin a %s" % args.get("operation"))


def _mine(args: Args) -> None:
    """A move about adapters, or one that this box knows nothing of."""
    move = named(args.get("move"), "move", MOVE)
    if os.path.isdir("%s/%s" % (kept.MOVES, move)) and journal.plan(move).get("operation") not in OPERATIONS:
        _refuse("move %s" % move)
    began = lock.moving() or {}
    if began.get("move") == move and began.get("operation") not in OPERATIONS:
        _refuse("move %s" % move)


def _open(args: Args) -> None:
    _mine(args)
    plan = args["plan"]
    if plan.get("operation") not in OPERATIONS or args["meta"].get("operation") not in OPERATIONS:
        _refuse("a plan of another kind")
    if plan.get("move") != args["move"] or os.path.isdir("%s/%s" % (kept.MOVES, args["move"])):
        _refuse("to write another move's journal")
    for step in plan.get("steps", []):
        if step.get("kind") not in STEPS:
            _refuse("a step %s" % step.get("kind"))
        _step(step.get("params", {}))
    for asked in plan.get("questions", {}).values():
        _facts(asked)
    plan["source"] = plan["release"] = _live()
    plan["diffs"], plan["budgets"] = [], []


def _step(params: Args) -> None:
    """Names are names, and files are of an adapter; which engine is asked is found in the release."""
    for item in params.get("items", []):
        named(item.get("model"), "model")
        named(item.get("name"), "name of an adapter")
        named(item.get("digest"), "digest", DIGEST)
        if "files" in item:
            checked_files(item["files"])


def _anything(args: Args) -> None:
    """Nothing in the arguments can do harm, or the op itself looks at them."""


GROWING = ("journal_open", "journal_append", "adapter_put", "adapters_note")


def _room() -> None:
    """The disk is not filled by this user to the last byte."""
    if os.path.isdir(kept.VAR) and shutil.disk_usage(kept.VAR).free < SPARE:
        _refuse("the disk of %s is nearly full" % kept.VAR)


OPS: Dict[str, Callable[[Args], None]] = {
    "ping": _anything,
    "facts": _facts,
    "fleet_text": _anything,
    "checkpoint_files": _checkpoint,
    "lock_take": _take,
    "lock_beat": _hold,
    "lock_release": _hold,
    "claim": _take,
    "move_begin": _begin,
    "move_end": _mine,
    "move_close": _mine,
    "moves_prune": lambda args: None if args.get("keep", 0) >= 50 else _refuse("to forget moves"),
    "journal_open": _open,
    "journal_append": _mine,
    "journal_read": _mine,
    "adapter_sent": _anything,
    "adapter_put": _anything,
    "adapter_seal": _anything,
    "adapter_read": _anything,
    "adapters_index": _anything,
    "adapters_note": _anything,
    "adapters_drop": _mine,
    "adapters_restore": _mine,
    "adapters_load": _engine,
    "adapters_unload": _engine,
    "adapters_look": _engines,
    "adapters_tell": _socket,
}


def check(name: str, args: Args) -> None:
    """Raise NotAllowedError unless this user may call the op with these arguments."""
    if name not in OPS:
        _refuse("no op %s" % name)
    if name in GROWING:
        _room()
    try:
        OPS[name](args)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise NotAllowedError("arguments that %s does not have: %s" % (name, error)) from None


def main(index: Dict[str, str]) -> int:
    """Answer one client on standard input and output, until it is gone. Returns an exit status.

    What the client wanted to run is in SSH_ORIGINAL_COMMAND; of that only the word counts that shows it the answer.
    """
    wanted = re.search(r"' ([0-9a-f]{24}) [0-9a-f]{24}$", os.environ.get("SSH_ORIGINAL_COMMAND", ""))
    if wanted is None:
        print("this user can only `fleetctl lora push`, `lora list` and `lora remove`", file=sys.stderr)
        return 1
    nonce = wanted.group(1)[::-1]
    os.write(1, ("\n%s %d %d\n" % (nonce, sys.version_info[0], sys.version_info[1])).encode())
    requests = os.fdopen(os.dup(0), "rb", 65536)
    if not requests.readline(LONGEST_FIRST_LINE).endswith(b"\n"):
        return 1
    answers = take_over_streams()
    Program(requests, answers, index, check).serve()
    return 0
