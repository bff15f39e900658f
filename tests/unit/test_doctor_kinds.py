"""What doctor's codes are: the same for ever, and explained."""

from __future__ import annotations

from pathlib import Path

from fleetctl.doctor import explain, families


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
