"""What doctor's codes are: the same for ever, and explained."""

from __future__ import annotations

from pathlib import Path

from fleetctl.doctor import explain, families
from fleetctl.doctor.examine import once
from fleetctl.doctor.finding import Finding
from fleetctl.doctor.proxy.settings import CONFIG, LENGTHENS
from fleetctl.doctor.units.kinds import DRIFT


def test_codes_are_unique_and_every_kind_says_all_that_there_is_to_say() -> None:
    known = [kind for family in families.FAMILIES for kind in family.kinds]
    assert len({kind.code for kind in known}) == len(known)
    for kind in known:
        assert kind.title and kind.looks_for and kind.why and kind.fix and kind.source, kind.code
        assert not kind.looks_for.endswith("."), kind.code


def test_the_page_is_the_one_that_the_kinds_make() -> None:
    assert Path("docs/doctor.md").read_text() == explain.page()


def test_a_code_of_lint_is_explained_too() -> None:
    assert explain.explained("h01").code == "H01"


def test_when_a_box_was_asked_is_told_to_whom_it_concerns_and_is_no_word_of_anybody_else() -> None:
    told = {family.name: {"asked_at", "answered_at"} & set(family.told.model_fields) for family in families.FAMILIES}
    assert {name for name, fields in told.items() if fields} == {"box", "memory"}


def test_an_edited_file_whose_harm_is_told_line_by_line_is_not_told_again_as_edited() -> None:
    def edited(box: str, path: str) -> Finding:
        return DRIFT.found(box, path, "it was edited", fix="fleetctl apply")

    harm = LENGTHENS.found("a", f"{CONFIG}:93", "retries go to the same dead server", fix="fleetctl apply")
    of_the_file = LENGTHENS.found(None, "proxy: retries", "0", fix="take it out")
    others = [edited("b", CONFIG), edited("a", "/etc/fleetctl/bin/ready.py"), of_the_file]
    assert once([edited("a", CONFIG), harm, *others]) == [harm, *others]
    assert once([edited("a", CONFIG), *others]) == [edited("a", CONFIG), *others]
