"""What may be a secret in a file of somebody else's. It is taken for one rather too often than too seldom: a reference
to a variable does no harm, a password in an output does."""

from __future__ import annotations

import re

from fleetctl.spec import problems

_NAME = re.compile(
    r"(^|_)(PASS|PGPASS|PWD|AUTH|BEARER|CREDENTIALS?|KEY)$|PASSWORD|PASSWD|SECRET",
    re.IGNORECASE,
)
_NO_SECRET = frozenset({"PWD"})
_VALUE = re.compile(
    r"://[^/\s:@\"']{0,256}:[^/\s@\"']{1,1024}@"  # scheme://user:password@host (RFC 3986, 3.2.1)
    r"|\b(?:Bearer|Basic)\s+[^\s\"'$]"  # of an Authorization header
    r"|(?<![a-z_])(?:(?:hf|access|auth|api|hub)_?token|token|password|passwd|secret|api_?key)[\"']?\s*[:=]\s*[\"']?[^\s\"'$]",
    re.IGNORECASE,
)


def looks_secret(name: str) -> bool:
    """Whether a variable, or a flag without its dashes, is called like a secret."""
    name = name.replace("-", "_")
    return problems.looks_secret(name) or (_NAME.search(name) is not None and name not in _NO_SECRET)


def holds_secret(text: str) -> bool:
    """Whether a text has a token, a key, or an address with a password in it."""
    return problems.holds_secret(text) or _VALUE.search(text) is not None
