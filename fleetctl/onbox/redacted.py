"""Lines of files, logs and command lines as they can be shown: what looks like a secret is taken out on the box.

``watch/logs/clean.py`` has rules of its own, for it cannot use this room: logs are shown whole, and it hides less of
them. tests/unit/test_onbox_acting.py tries both with the same lines.
"""

import re
from typing import Iterable, List

HIDDEN = "***"
LONGEST = 300  # characters of a line

_QUOTED = r"""(?: "(?:[^"\\]|\\.)*"? | '(?:[^'\\]|\\.)*'? )"""
# NAME_TOKEN=value, --api-key value, "password": "value", api_key=['value', 'value'], '--api-key', 'value'.
_NAMED = re.compile(
    r"""(?ix) (?<![\w.-])
        ( [\w.-]* (?: token(?!s|i) | secret | passw(?:or)?d | passphrase | (?:api|access)[-_]?key | credential )
        [\w.-]* (?: ["']? (?: \s*[=:]\s* | \s+ ) | ["'] \s* , \s* (?= ["'] ) ) ) (?! -- )
        (?: [\[(] \s* %s (?: \s* , \s* %s )* \s* [\])]? | %s | [^\s"',;]+ ) """
    % (_QUOTED, _QUOTED, _QUOTED)
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"']+")
_IN_URL = re.compile(r"(?i)(?<![a-z0-9+.-])([a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+@")
_KNOWN = re.compile(r"\b(?:sk-|hf_|ghp_|gho_|github_pat_|glpat-|xox[abp]-|nvapi-)[\w-]{6,}")


def redacted(line: str) -> str:
    """A line of text without the values that look like secrets, at most LONGEST characters long."""
    line = _BEARER.sub(r"\1 " + HIDDEN, line[: 4 * LONGEST])
    line = _NAMED.sub(r"\1" + HIDDEN, line)
    line = _IN_URL.sub(r"\1" + HIDDEN + "@", line)
    line = _KNOWN.sub(HIDDEN, line)
    return line[:LONGEST] + ("…" if len(line) > LONGEST else "")


def all_redacted(lines: Iterable[str], most: int) -> List[str]:
    """The first lines, each as `redacted`; where there are more, the last one says how many."""
    given = list(lines)
    shown = [redacted(line) for line in given[:most]]
    return shown + (["… and %d more lines" % (len(given) - most)] if len(given) > most else [])
