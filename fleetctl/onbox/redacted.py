"""Lines of files, logs and command lines as they can be shown: what looks like a secret is taken out on the box.

``watch/logs/clean.py`` has rules of its own, for it cannot use this room: logs are shown whole, and it hides less of
them. tests/unit/test_onbox_acting.py tries both with the same lines.
"""

import re
from typing import Iterable, List

HIDDEN = "***"
LONGEST = 300  # characters of a line

# NAME_TOKEN=value, --api-key value, '--api-key', 'value', "password": "value", \"password\": \"value\", and lists.
_NAMED = re.compile(
    r"""(?ix) ( (?: token(?!s|i) | secret | passw(?:or)?d | passphrase | (?:api|access|private|encryption)[-_ ]?key
        | credential | _pass(?=["'\s=:]) | _pwd(?=["'\s=:]) )
        [\w.-]{0,40} \\? ["']? (?: \s*[=:]\s* | \s*,\s*(?=["']) | \s+ ) )
        (?! -- ) (?: "(?:[^"\\]|\\.)*"? | '(?:[^'\\]|\\.)*'? | \\"[^"]*"? | \\'[^']*'?
        | [\[(]\s*["'][^\])]*[\])]? | [^\s"',;]+ ) """
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"']+")
_HEADER = re.compile(
    r"(?i)\b((?:authorization|cookie)(?:\\?[\"']?\s*[:=]|[\"']\s*,)"
    r"(?!\s*b?\\?[\"']?(?:bearer|basic)\b)\s*b?\\?[\"']?)[^\s\"'][^\"']*"
)
_IN_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]{0,20}://[^\s/:@]{0,200}:)[^\s/]+@")
_IN_QUERY = re.compile(r"(?i)([?&](?:key|sig|signature|x-amz-signature)=)[^\s&\"']+")
_USER = re.compile(r"((?<!\S)(?:-u\s*|--user[ =])[\"']?[^\s:\"'\d-][^\s:\"']{0,64}:)[^\s\"']+")
_SSHPASS = re.compile(r"(\bsshpass\s+-p\s*)[^\s]+")
_KNOWN = re.compile(
    r"\b(?:(?:sk-|hf_|ghp_|gho_|github_pat_|glpat-|xox[abp]-|nvapi-|AKIA)[\w-]{6,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)


def redacted(line: str) -> str:
    """A line of text without the values that look like secrets, at most LONGEST characters long."""
    safe = hidden(line[: 4 * LONGEST])
    return safe[:LONGEST] + ("…" if len(line) > LONGEST else "")


def hidden(line: str) -> str:
    """A line of text, as long as it is, without the values that look like secrets."""
    line = _BEARER.sub(r"\1 " + HIDDEN, line)
    for rule in (_USER, _SSHPASS, _NAMED, _HEADER, _IN_QUERY):
        line = rule.sub(r"\1" + HIDDEN, line)
    line = _IN_URL.sub(r"\1" + HIDDEN + "@", line)
    return _KNOWN.sub(HIDDEN, line)


def all_redacted(lines: Iterable[str], most: int) -> List[str]:
    """The first lines, each as `redacted`; where there are more, the last one says how many."""
    given = list(lines)
    shown = [redacted(line) for line in given[:most]]
    return shown + (["… and %d more lines" % (len(given) - most)] if len(given) > most else [])
