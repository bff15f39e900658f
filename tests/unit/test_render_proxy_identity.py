"""The fingerprint of a proxy changes exactly when HAProxy has to be reloaded."""

from pathlib import Path

from fleetctl.render.proxy import haproxy_config, proxy_config
from fleetctl.spec.load import load_fleet

EXAMPLE = load_fleet(Path(__file__).parents[2] / "templates" / "example.yaml").fleet


def test_layouts_of_one_file_share_a_fingerprint_and_differ_in_what_is_disabled() -> None:
    split, replicas = proxy_config(EXAMPLE, "split"), proxy_config(EXAMPLE, "replicas")
    assert split.fingerprint() == replicas.fingerprint()
    assert haproxy_config(split) != haproxy_config(replicas)
    assert haproxy_config(split).replace(" disabled", "") == haproxy_config(replicas).replace(" disabled", "")


def test_other_templates_give_another_fingerprint() -> None:
    before = proxy_config(EXAMPLE, "split")
    assert before.model_copy(update={"template": "other"}).fingerprint() != before.fingerprint()


def test_a_changed_setting_gives_another_fingerprint() -> None:
    proxy = EXAMPLE.proxy.model_copy(update={"hold": 1.0})
    changed = EXAMPLE.model_copy(update={"proxy": proxy})
    assert proxy_config(changed, "split").fingerprint() != proxy_config(EXAMPLE, "split").fingerprint()
