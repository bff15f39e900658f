"""The operator's public key among those that a login user of this box accepts."""

import base64
import grp
import os
import pwd
import stat
from typing import Any, Dict, List, Optional

from fleetctl.onbox.files import write
from fleetctl.onbox.main import Call, OpError
from fleetctl.onbox.process import run
from fleetctl.onbox.setup_record import give_back, keep, note

USUAL = (".ssh/authorized_keys", "%h/.ssh/authorized_keys")


def file_of(call: Call, user: str) -> str:
    """Where sshd looks for the keys of a user. OpError where that is not the usual place, or no place of the user."""
    sshd = run(call, ["sshd", "-T", "-C", "user=%s,host=localhost,addr=127.0.0.1" % user])
    words: List[str] = []
    for line in sshd["out"].splitlines():
        if line.startswith("authorizedkeysfile "):
            words = line.split()[1:]
    if sshd["rc"] == 0 and words and words[0] not in USUAL:
        raise OpError("sshd takes the keys of %s from %s: add the key there by hand" % (user, words[0]))
    try:
        home = pwd.getpwnam(user).pw_dir
    except KeyError:
        raise OpError("there is no user %s" % user) from None
    if not os.path.isdir(home):
        raise OpError("%s, the home of %s, is not there" % (home, user))
    path = os.path.join(home, ".ssh", "authorized_keys")
    for place in (os.path.dirname(path), path):
        if os.path.islink(place):
            raise OpError("%s is a link: add the key by hand" % place)
    return path


def _blob(line: str) -> Optional[str]:
    """The key of a line, without options and comment."""
    words = line.split()
    for one, other in zip(words, words[1:]):  # noqa: B905, RUF007 - both came with Python 3.10
        if one.startswith(("ssh-", "ecdsa-", "sk-")):
            return other
    return None


def _lines(path: str) -> List[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as source:
            return source.read().splitlines()
    except FileNotFoundError:
        return []


def is_there(call: Call, part: Dict[str, Any]) -> bool:
    """The user's file has the key."""
    wanted = _blob(part["line"])
    lines = _lines(file_of(call, part["user"]))
    return any(_blob(line) == wanted for line in lines if not line.startswith("#"))


def add(call: Call, part: Dict[str, Any], record: Dict[str, Any]) -> None:
    """Append the key to the user's file, which is made as sshd wants it where there is none."""
    if is_there(call, part):
        return
    user = pwd.getpwnam(part["user"])
    path = file_of(call, part["user"])
    old = ""
    if os.path.exists(path):
        with open(path, encoding="utf-8", errors="surrogateescape") as source:
            old = source.read()
    text = old + ("" if old.endswith("\n") or not old else "\n") + part["line"] + "\n"
    mode = stat.S_IMODE(os.stat(path).st_mode) if old else 0o600
    keep(record, {"path": path, "content_b64": _b64(text)})
    note(call, part["part"], record)
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        os.mkdir(folder, 0o700)
        os.chown(folder, user.pw_uid, user.pw_gid)
    owner = "%s:%s" % (part["user"], _group(user.pw_gid))
    write(call, [{"path": path, "content_b64": _b64(text), "mode": mode, "owner": owner}])


def _group(number: int) -> str:
    return grp.getgrgid(number).gr_name


def _b64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()


def take_back(call: Call, part: Dict[str, Any], record: Dict[str, Any]) -> List[str]:
    """Put the file back as it was; where others changed it since, take out the line alone."""
    left = []
    for path in record.get("files", {}):
        if give_back(record, path) is None:
            continue
        lines = _lines(path)
        kept = [line for line in lines if line.strip() != part["line"]]
        if len(kept) < len(lines):
            found = os.stat(path)
            text = "".join(line + "\n" for line in kept)
            temporary = path + ".fleetctl-back"
            with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as target:
                target.write(text)
            os.chown(temporary, found.st_uid, found.st_gid)
            os.chmod(temporary, stat.S_IMODE(found.st_mode))
            os.replace(temporary, path)
        left.append("%s has changed since: the line with the key was taken out, and the rest stays" % path)
    return left
