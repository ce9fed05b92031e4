"""The Authorization header (contract 2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.bearer import bearer_token


class BearerTokenTests(SynchronousTestCase):
    def test_one_credential(self) -> None:
        for value in (b"Bearer aB3", b"bearer aB3", b"BEARER aB3", b"Bearer   aB3", b" Bearer aB3\t"):
            self.assertEqual(bearer_token([value]), b"aB3")

    def test_every_form_of_token_that_was_ever_given_out(self) -> None:
        for token in (b"0123456789abcdef" * 4, b"a-._~+/==", b"old!key"):
            self.assertEqual(bearer_token([b"Bearer " + token]), token)

    def test_anything_else(self) -> None:
        for values in (
            *([], [b""], [b"Bearer"], [b"Bearer "], [b"aB3"], [b"Basic aB3"], [b"BeareraB3"]),
            *([b"Bearer a b"], [b"Bearer a,b"], [b"Bearer a, Bearer b"], [b"Bearer\taB3"], [b"Bearer \xff"]),
            *([b"Bearer a\n"], [b"Bearer a\x00"], [b"Bearer " + b"a" * 513]),
            [b"Bearer a", b"Bearer a"],
        ):
            self.assertIsNone(bearer_token(values), values)

    @given(st.lists(st.binary(max_size=40), max_size=2))
    def test_a_token_has_no_white_space(self, values: list[bytes]) -> None:
        token = bearer_token(values)
        if token is not None:
            self.assertEqual(token.split(), [token])
