"""The page docs/proxy-lint.md, made from the rules: ``python -m fleetctl.proxy.lint.page > docs/proxy-lint.md``."""

from __future__ import annotations

from pathlib import Path

from fleetctl.proxy.lint import haproxy_reader, nginx_reader, rules_haproxy, rules_nginx
from fleetctl.proxy.lint.findings import Assumed, Finding, Rule, apply
from fleetctl.proxy.lint.haproxy_reader import Config as HaproxyConfig
from fleetctl.proxy.lint.nginx_reader import Config as NginxConfig

_INTRODUCTION = """\
# What a proxy's settings do in an outage

`fleetctl proxy lint FILE` reads an HAProxy or nginx configuration (`-` for standard input) and says for every setting
that matters what it would do in an outage or to a long stream, and what to write instead. It tells the two apart by
itself; `--kind haproxy|nginx` forces one. `--first-token SECONDS` is the longest wait for a first token that your
engines need (default 256 s: measured for 202,323 prompt tokens on one GB10). `--json` prints one event a line for each
finding, and `summary` last. nginx reads its includes where they are under the folder of FILE;
`nginx -T | fleetctl proxy lint -` has all of them.

Exit status: 0 when there are at most notes, 9 when there are errors or warnings, 2 when the file cannot be read or is
neither. **error**: requests are lost, cut off or generated twice, or the proxy is open to others. **warning**: an
outage gets longer or reaches more requests. **note**: worth knowing.

This page is made from the rules. "Found" is what the command says about the example above it.
"""


def _rule(code: str, rule: Rule[HaproxyConfig] | Rule[NginxConfig], finding: Finding, program: str) -> str:
    also = f" (also line {', '.join(str(place.line) for place in finding.also)})" if finding.also else ""
    return f"""\
### {code} {rule.title} ({rule.severity.value})

Looks for {rule.looks_for}.

```{program}
{rule.example.rstrip()}
```

- Found: line {finding.place.line}{also}, {finding.where}: `{finding.setting}`
- What it does: {finding.outage}
- Write: {finding.write}
- Why: {rule.why}
- Source: {rule.source}
"""


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, "## HAProxy\n"]
    for haproxy in rules_haproxy.RULES:
        found = apply([haproxy], haproxy_reader.read("haproxy.cfg", haproxy.example), Assumed())
        parts.append(_rule(haproxy.code, haproxy, found[0], "haproxy"))
    parts.append("## nginx\n")
    for nginx in rules_nginx.RULES:
        found = apply([nginx], nginx_reader.read("nginx.conf", nginx.example, Path("/nonexistent")), Assumed())
        parts.append(_rule(nginx.code, nginx, found[0], "nginx"))
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
