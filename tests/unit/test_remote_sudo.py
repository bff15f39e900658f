"""What sudo's words mean."""

from __future__ import annotations

import pytest

from fleetctl.errors import BoxError
from fleetctl.remote import sudo


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sudo: sorry, you must have a tty to run sudo\n", "insists on a terminal"),
        (
            "sudo: a terminal is required to read the password; either use the -S option to read from standard "
            "input or configure an askpass helper\n",
            "insists on a terminal",
        ),
        ("ops is not in the sudoers file.\n", "has no right to use sudo"),
        ("ops is not in the sudoers file.  This incident will be reported.\n", "has no right to use sudo"),
        ("Sorry, user ops is not allowed to execute '/usr/bin/python3' as root on spark1.\n", "has no right"),
        ("Sorry, user ops may not run sudo on spark1.\n", "has no right"),
        ("sudo: I'm sorry ops. I'm afraid I can't do that\n", "has no right"),
        (
            "sudo: unable to open /etc/sudoers: Permission denied\n",
            "sudo does not work for ops: sudo: unable",
        ),
    ],
)
@pytest.mark.parametrize("asked", [False, True])
def test_a_refusal_is_explained(text: str, message: str, asked: bool) -> None:
    with pytest.raises(BoxError, match=message) as caught:
        sudo.explain("spark1", "ops", "noise of a start-up file\n" + text, asked=asked)
    assert str(caught.value).startswith("spark1: ")
    assert "noise" not in str(caught.value)


@pytest.mark.parametrize("text", ["sudo: a password is required\n", "sudo: interactive authentication is required\n"])
def test_a_wish_for_a_password_is_none_before_it_was_given_and_a_refusal_after(text: str) -> None:
    with pytest.raises(sudo.PasswordWanted):
        sudo.explain("spark1", "ops", text, asked=False)
    with pytest.raises(BoxError, match="refused the password"):
        sudo.explain("spark1", "ops", text, asked=True)


@pytest.mark.parametrize(
    "text",
    [
        "Sorry, try again.\n",
        "sudo: 1 incorrect password attempt\n",
        "sudo: Authentication failed, try again.\n",
        "sudo: maximum 3 incorrect authentication attempts\n",
    ],
)
def test_a_refused_password_is_seen(text: str) -> None:
    assert sudo.refused(text)


def test_words_of_others_are_not_sudos() -> None:
    sudo.explain("spark1", "ops", "python3: cannot execute binary file\n", asked=False)
    assert not sudo.refused("We trust you have received the usual lecture from the local System Administrator.")
