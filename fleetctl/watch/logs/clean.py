"""Text of a log that is safe to show: no secrets, and nothing that a terminal would obey. Pure."""

from __future__ import annotations

import re

HIDDEN = "[hidden]"

# Colours and other sequences of terminals (ECMA-48), and titles and links (OSC), which end with BEL or ST.
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
# C0 and C1 controls, and the marks that turn the direction of text or hide in it.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")

_NOT_SECRET = r"(?!(?:None|null|True|False|true|false)\b|\*|\[hidden\])"
_NAME = (
    r"(?:api[-_ ]?keys?|(?:hf|hub|auth|access|refresh|bearer|id|session|client|gh|github)[-_]?token|"
    r"(?:client|secret|private|access|encryption)[-_]?(?:secret|access[-_]?key|key)|secret|password|passwd|passphrase)"
)
_VARIABLE = (
    r"[A-Z][A-Z0-9_]{0,80}(?:TOKEN|API_KEY|APIKEY|SECRET|SECRET_KEY|ACCESS_KEY|PASSWORD|PASSWD|_PASS|_PWD|CREDENTIALS)"
)
_QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_LIST = rf"[\[(]\s*(?:{_QUOTED})(?:\s*,\s*(?:{_QUOTED}))*\s*,?\s*[\])]"
# The last alternative begins with the quote of JSON in a string (\"), or with one that has no end.
_VALUE = rf"(?:{_LIST}|{_QUOTED}|\\?['\"]?{_NOT_SECRET}[^\s'\",;&)\]}}\\]+)"
# No rule looks twice at more than a few words: a line of 16,000 characters takes milliseconds whatever is in it.
_OPTION = rf"(?<![A-Za-z0-9_-])--?(?:[a-z]{{1,20}}[-_]){{0,4}}(?:{_NAME}|token)"
# NAME=value, NAME: value, 'NAME': value, --NAME value, and '--NAME', 'value' as Python shows a list of arguments.
_RULES = tuple(
    (re.compile(pattern), kept)
    for pattern, kept in (
        (rf"(?i:(?P<kept>{_OPTION}(?:'\s*,\s*'|\"\s*,\s*\"))){_NOT_SECRET}[^'\"]+", True),
        (rf"(?i:(?P<kept>{_OPTION}(?:\s+|=)))(?!-)(?:{_LIST}|{_QUOTED}|{_NOT_SECRET}[^\s'\"]+)", True),
        (rf"(?i:(?P<kept>(?<![A-Za-z0-9]){_NAME}\\?['\"]?\s*[=:]\s*)){_VALUE}", True),
        (rf"(?P<kept>(?<![A-Za-z0-9_]){_VARIABLE}\\?['\"]?\s*[=:]\s*){_VALUE}", True),
        # A token alone is mostly one of a model's: only where it is given to somebody.
        (rf"(?i:(?P<kept>\\?['\"]token\\?['\"]\s*:\s*|(?<![\w-])token\s?[=:]\s?(?=['\"]?[\w.-]{{12}}))){_VALUE}", True),
        (r"(?i:(?P<kept>[?&](?:token|key|sig|signature|x-amz-(?:signature|security-token))=))[^\s&'\"]+", True),
        (r"(?i:(?P<kept>\b(?:bearer|basic)\s+))[A-Za-z0-9._~+/=-]{6,}", True),
        (
            r"(?i:(?P<kept>\b(?:x-api-key|authorization)(?:\\?['\"]?\s*[:=]|['\"]\s*,)"
            r"(?!\s*b?\\?['\"]?(?:bearer|basic)\b)\s*b?\\?['\"]?(?:[a-z][\w-]{0,20}\s+)?))[^\s'\",\\]+",
            True,
        ),
        (r"(?i:(?P<kept>\b(?:set-)?cookie(?:['\"]?\s*:|['\"]\s*,)\s*b?['\"]?))[^\s'\"][^'\"]*", True),
        (r"(?P<kept>\b[a-z][a-z0-9+.-]{0,20}://[^\s/:@]{0,200}:)[^\s/]+(?=@)", True),
        (
            r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|nvapi-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|"
            r"github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abp]-[\w-]{10,}|AKIA[A-Z0-9]{16}|"
            r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)",
            False,
        ),
    )
)


def redacted(text: str) -> str:
    """The text without values of keys, tokens and passwords, in whatever way engines print their arguments."""
    for rule, kept in _RULES:
        text = rule.sub(rf"\g<kept>{HIDDEN}" if kept else HIDDEN, text)
    return text


def lines_of(message: str) -> list[str]:
    r"""The lines of a message, ready to be shown: without secrets, colours and carriage returns.

    Of a progress bar, which overwrites itself, the last state is left, as a terminal would show it. What else a
    terminal would obey is spelt out (``\x07``).
    """
    plain = _SEQUENCES.sub("", message)
    shown = []
    for line in plain.rstrip("\r\n").split("\n"):
        states = [state for state in line.split("\r") if state.strip()]
        last = states[-1] if states else ""
        shown.append(_CONTROLS.sub(_spelt, redacted(last)).expandtabs(8).rstrip())
    return shown


def _spelt(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
