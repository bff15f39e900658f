"""What a code means; the page docs/doctor.md: ``python -m fleetctl.doctor.explain > docs/doctor.md``."""

from __future__ import annotations

import difflib
from typing import Any

from fleetctl.doctor.families import FAMILIES, kinds
from fleetctl.doctor.finding import Kind
from fleetctl.errors import SpecError
from fleetctl.proxy.lint.findings import Rule

_INTRODUCTION = """\
# What doctor finds

`fleetctl doctor [BOX]…` looks at every box, at the proxy and at the engines themselves, and says what hurts or will:
each finding with its code, what was seen, why it matters and the exact fix. It changes nothing without `--fix`.
`fleetctl explain CODE` prints what stands here. Models' files are compared by their names, sizes, headers and words,
which takes a moment; `--checksums` compares every byte of them, which takes minutes.

`fleetctl doctor --fix` mends what is safe to mend: the findings that say "--fix does that". It shows every command,
box by box, with the command that takes it back, and asks (`--yes` does not). The repairs are a change like any other:
under the fleet's lock, with a journal, undone when one of them fails, and the last change of `fleetctl status`. Then
it looks again and says what is left. It turns units of the layout on and off for the next boot, disables foreign
units that fight ours, takes the restart policy from containers, and ends processes that an engine of fleetctl left
over, which is the only thing that cannot be taken back. It never ends what fleetctl did not start, and touches
nothing while a move is under way or was cut off. What `fleetctl apply` brings right is left to it.

**error**: something is broken or will break. **warning**: it will hurt when something else happens. **note**: worth
knowing. Exit status: 0 when there are at most notes, 9 when there are errors or warnings, 3 when a box could not be
looked at. `--json` prints one event a line for each finding, and `summary` last.

This page is made from the kinds of findings.
"""


def known() -> dict[str, Kind]:
    """Code → kind, of doctor and of ``proxy lint``."""
    from fleetctl.proxy.lint.rules_haproxy import RULES as HAPROXY
    from fleetctl.proxy.lint.rules_nginx import RULES as NGINX

    return kinds() | {rule.code: _of_lint(rule) for rule in HAPROXY} | {rule.code: _of_lint(rule) for rule in NGINX}


def explained(code: str) -> Kind:
    """The kind of a code, of doctor or of ``proxy lint``. Raises SpecError, with the nearest code, for any other."""
    every = known()
    wanted = code.strip().upper()
    if wanted not in every:
        near = difflib.get_close_matches(wanted, every, n=3, cutoff=0.3)
        like = f"near it: {', '.join(near)}; " if near else ""
        raise SpecError(f"there is no finding {code}", hint=f"{like}docs/doctor.md and docs/proxy-lint.md have all")
    return every[wanted]


def _of_lint(rule: Rule[Any]) -> Kind:
    fix = "docs/proxy-lint.md has an example and what to write instead"
    return Kind(rule.code, rule.severity, rule.title, rule.looks_for, rule.why, fix, rule.source)


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for family in FAMILIES:
        parts.append(f"## {family.name.capitalize()}\n")
        parts += [_part(kind) for kind in family.kinds]
    return "\n".join(parts)


def _part(kind: Kind) -> str:
    return f"""\
### {kind.code} {kind.title} ({kind.severity.value})

Looks for {kind.looks_for}.

- Why: {kind.why}
- Fix: {kind.fix}
- Source: {kind.source}
"""


if __name__ == "__main__":
    print(page(), end="")
