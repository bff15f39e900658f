"""What the installed program does for an account with limited sudo: what moves take, in fleetctl's own places.

Those who use it decide what the engines run, and engines run as root: this keeps an account from running and reading
what it likes, it does not keep it from becoming root by way of an engine. docs/security.md says so too.
"""

import os
import re
import syslog
from typing import Any, Callable, Dict, List

from fleetctl.onbox.limited_places import is_ours, of_files, of_folders, of_weights
from fleetctl.onbox.limited_programs import (
    asks_for_help,
    fetches,
    makes_container,
    of_images,
    of_trial,
    of_units,
    program_in,
)

UNITS = re.compile(r"/etc/systemd/system/(fleetctl-[^/]+|[^/]+\.d/fleetctl[^/]*\.conf)$")
CHECKS = (
    ("systemd-analyze", "verify", "--man=no"),
    ("haproxy", "-c", "-f"),
    ("python3", "-I"),
)  # each followed by paths in fleetctl's places, and the last by the word "check" between two of them
ON_UNITS = (("systemctl", "reload"), ("systemctl", "reset-failed"))  # of fleetctl's units
RDMA = re.compile(r"ib_(write|read|send)_(bw|lat)$")  # of perftest, for `fleetctl link test`
ENGINE_SOCKET = re.compile(r"/run/fleetctl/[a-z0-9-]+/engine\.sock$")
MOVE = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]*$")
QUIET = ("ping", "facts", "watch", "clock", "lock_beat", "unit_states")  # asked all the time; they change nothing

_READ = """
adapter_read adapters_index adapters_look addresses benches box_kind clock connects drained_read
engine_processes examine_clients examine_engines examine_link examine_memory examine_pool examine_processes
examine_proxy examine_units firewall_before firewall_look fleet_text gate_failures generation_read guard_status history
journal_lines journal_read journal_taken link_interfaces logs memory_left memory_lines ping pool_idle
pool_state programs_look proxy_figures proxy_requests start_lines superseded_read superseded_states survey tunings
unit_states watch
"""
_DONE = """
adapter_put adapter_seal adapter_sent adapters_drop adapters_load adapters_note adapters_restore
adapters_unload await_free bandwidth_drive bandwidth_serve bench_note claim claim_release daemon_reload
drained_write end_process firewall_keep firewall_take_back gate_keep generation_current generation_remove
generations_prune hub_library journal_append journal_open lock_beat lock_release lock_take move_begin pool_restart
move_close move_end moves_prune programs_prune programs_put programs_remove programs_unpack score_note
superseded_forget superseded_record tuning_note write_meta
"""
ALLOWED = frozenset(_READ.split()) | frozenset(_DONE.split())
REFUSED = frozenset(("digest", "read", "remedy", "remove", "search_addresses"))
"""Beyond what a move takes; and all whose name begins with ``setup_``."""


class NotAllowedError(Exception):
    """The account may not have this done."""


def within(name: str, args: Dict[str, Any]) -> None:
    """Return if the op may be run with these arguments, after a line in the system's log. Raises NotAllowedError."""
    who = os.environ.get("SUDO_USER") or str(os.getuid())
    allowed = is_allowed(name, args)
    if name not in QUIET or not allowed:
        syslog.openlog("fleetctl", 0, syslog.LOG_AUTHPRIV)
        word = "" if allowed else ": refused"
        what = name + program_in(name, args)
        syslog.syslog(syslog.LOG_INFO if allowed else syslog.LOG_WARNING, "%s: %s%s" % (who, what, word))
    if not allowed:
        raise NotAllowedError("the sudo of %s is limited here, and %s is beyond that" % (who, name))


def is_allowed(name: str, args: Dict[str, Any]) -> bool:
    """Whether an op that is asked for so is part of a move."""
    move = args.get("move")
    if move is not None and (not isinstance(move, str) or MOVE.match(move) is None):
        return False
    try:
        return name in ALLOWED or (name in RULES and RULES[name](args))
    except (TypeError, AttributeError, LookupError, ValueError):
        return False  # arguments of no shape that the op has


def _runs(args: Dict[str, Any]) -> bool:
    argv: List[str] = args.get("argv", [])
    if not argv or args.get("env"):
        return False
    for check in CHECKS:
        if tuple(argv[: len(check)]) == check:
            rest = argv[len(check) :]
            return bool(rest) and is_ours(rest[0]) and all(is_ours(word) or word == "check" for word in rest)
    if tuple(argv[:2]) in ON_UNITS:
        return bool(argv[2:]) and all(word.startswith("fleetctl-") for word in argv[2:])
    if RDMA.match(argv[0]) is not None:
        return not any(word.startswith("--o") for word in argv)  # --out_json_file=
    return argv[:2] == ["test", "-x"] and len(argv) == 3


def _installs(args: Dict[str, Any]) -> bool:
    """Files come from fleetctl's places and go to them, and to unit files with its name."""
    paths = list(args.get("paths", [])) + list(args.get("remove", []))
    folder = args.get("folder", "")
    source = not folder or is_ours(folder)
    return source and all(is_ours(path) or UNITS.match(path) is not None for path in paths)


def _links(prior: Dict[str, Dict[str, Any]]) -> List[str]:
    """Links that would be made to give units back."""
    return [path for state in prior.values() for path in state.get("links", {})]


def _is_link_of_unit(path: str) -> bool:
    return os.path.normpath(path) == path and path.startswith(("/etc/systemd/system/", "/run/systemd/system/"))


def _on_proxy(path: Any) -> bool:
    """The socket of fleetctl's proxy."""
    return isinstance(path, str) and os.path.normpath(path) == path and path.startswith("/run/fleetctl-proxy/")


def _probes(args: Dict[str, Any]) -> bool:
    """An engine is asked over HTTP, not a file."""
    return str(args.get("url") or "http:").startswith("http:")


def _facts(args: Dict[str, Any]) -> bool:
    """Digests are told of files that fleetctl writes, and programs run are those that run containers."""
    files = all(is_ours(path) or UNITS.match(path) is not None for path in args.get("secrets") or {})
    return files and of_images(args)


WEIGHTS = "arrive aside back begin delete goal kept look prove receive room serve verify"
PROXY = "await idle look open point set"
IMAGES = "images_look image_prove image_pull image_receive image_send image_tag builds examine_box"
FILES = "checkpoint_files model_checksums model_kind read_ahead"
RULES: Dict[str, Callable[[Dict[str, Any]], bool]] = {
    **dict.fromkeys(("weights_" + name for name in WEIGHTS.split()), of_weights),
    **dict.fromkeys(("proxy_" + name for name in PROXY.split()), lambda args: _on_proxy(args.get("path"))),
    **dict.fromkeys(IMAGES.split(), of_images),
    **dict.fromkeys(FILES.split(), of_files),
    **dict.fromkeys(("unit_start", "unit_stop", "unit_enable", "supersede"), of_units),
    "trial_run": lambda args: of_trial(args) and _probes(args),
    "trial_end": of_trial,
    "await_ready": _probes,
    "await_service": _probes,
    "facts": _facts,
    "installed": _installs,
    "fetch_weights": fetches,
    "run": _runs,
    "write": lambda args: all(is_ours(file.get("path", "")) for file in args.get("files", [])),
    "install": _installs,
    "uninstall": _installs,
    "firewall_try": lambda args: is_ours(args.get("path", "")),
    "unsupersede": lambda args: all(_is_link_of_unit(path) for path in _links(args.get("prior", {}))),
    "firewall_restore": lambda args: "include" not in args.get("script", ""),
    "program_help": asks_for_help,
    "container_try": lambda args: makes_container(args) and of_folders(args.get("folders", [])),
    "adapters_tell": lambda args: _on_proxy(args.get("path")),
    "pool_wish": lambda args: args.get("wish") in ("load", "evict", "leave", "pin", "unpin"),
    "socket_relay": lambda args: ENGINE_SOCKET.match(args.get("path", "")) is not None,
    "drop_page_cache": lambda args: "drop" not in args,
}
