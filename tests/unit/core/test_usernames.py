"""Usernames (contract 2.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import InvalidRequest
from telegrammer.core.usernames import fold_case, normalise


class NormaliseTests(SynchronousTestCase):
    def test_one_spelling(self) -> None:
        for raw in ("some_user", "@some_user", "Some_User", "@SOME_USER"):
            self.assertEqual(normalise(raw), "some_user")
        self.assertEqual(normalise("a"), "a")
        self.assertEqual(normalise("@" + "Z9" * 32), "z9" * 32)

    @pytest.mark.report("irazasyed/telegram-bot-sdk#348")
    def test_what_no_username_can_be(self) -> None:
        for raw in ("", "@", "@@a", "a@", "a b", "a\n", "a" * 65, "@" + "a" * 65, "a-b", "ä", "\u212a", "١"):
            problem = self.assertRaises(InvalidRequest, normalise, raw)
            self.assertEqual(problem.field, "username")

    def test_the_refusal_says_why(self) -> None:
        for raw, kind in (("", "0 characters"), ("@", "0 characters"), ("@" + "a" * 65, "65 characters")):
            self.assertTrue(str(self.assertRaises(InvalidRequest, normalise, raw).message).endswith(kind))
        self.assertTrue(self.assertRaises(InvalidRequest, normalise, "a-b").message.endswith("has another"))

    @given(st.text())
    def test_case_is_ascii_case_only(self, text: str) -> None:
        folded = fold_case(text)
        self.assertEqual(
            folded.encode("utf-8", "surrogatepass"), text.encode("utf-8", "surrogatepass").lower()
        )
        self.assertEqual(fold_case(folded), folded)
