"""The Authorization header, beside a second reader of another make."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase
from werkzeug.datastructures import Authorization

from telegrammer.core.bearer import bearer_token

tokens = st.text(
    alphabet=[chr(byte) for byte in range(0x21, 0x7F) if chr(byte) != ","], min_size=1, max_size=512
)
schemes = st.sampled_from(["bearer", "Bearer", "BEARER", "bEaReR"])
near = st.sampled_from(
    [b"Bearer", b"bearer ", b"Basic ", b" ", b"\t", b",", b"=", b"a", b'"', b"\x00", b"\xa0", b"\xff"]
)


class BearerPropertyTests(SynchronousTestCase):
    @given(schemes, st.integers(1, 5), tokens, st.text(alphabet=" \t", max_size=3))
    def test_the_token_comes_out_as_it_went_in(self, scheme: str, gap: int, token: str, around: str) -> None:
        value = f"{around}{scheme}{' ' * gap}{token}{around}".encode()
        self.assertEqual(bearer_token([value]), token.encode())
        self.assertIsNone(bearer_token([value, value]))

    @given(st.lists(near, max_size=6).map(b"".join) | st.binary(max_size=40))
    def test_what_is_taken_another_reader_takes_for_the_same(self, value: bytes) -> None:
        token = bearer_token([value])
        if token is None or b"=" in token.rstrip(b"="):
            return  # With an equals sign amid it, the other one takes it for a parameter.
        other = Authorization.from_header(value.decode("latin-1").strip(" \t"))
        assert other is not None, value
        self.assertEqual((other.type, (other.token or "").encode("latin-1")), ("bearer", token))

    @given(st.integers(1, 9000))
    @example(512)
    @example(513)
    def test_the_length_has_a_bound(self, length: int) -> None:
        self.assertEqual(bearer_token([b"Bearer " + b"x" * length]) is not None, length <= 512)
