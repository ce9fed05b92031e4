"""Foreign text is one printable, encodable, short line."""

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.foreign import shown


class ShownTests(SynchronousTestCase):
    def test_table(self) -> None:
        for text, limit, expected in (
            ("Bad Request: chat not found", 256, "Bad Request: chat not found"),
            ("a\nb\r\t\x00\x1b[31m", 256, "a\\nb\\r\\t\\x00\\x1b[31m"),
            ("\ud83d", 256, "\\ud83d"),
            ("\u202eevil\u2028", 256, "\\u202eevil\\u2028"),
            ("\U000e0001", 256, "\\U000e0001"),
            ("Grüße 😀", 256, "Grüße 😀"),
            ("abcdef", 6, "abcdef"),
            ("abcdefg", 6, "abcde…"),
            ("abcd\n", 6, "abcd\\n"),
            ("abcde\n", 6, "abcde…"),
            ("\n\n\n\n", 6, "\\n\\n…"),
        ):
            self.assertEqual(shown(text, limit), expected)

    @given(st.text(st.characters(categories=None)), st.integers(1, 300))
    def test_always_printable_encodable_and_short(self, text: str, limit: int) -> None:
        result = shown(text, limit)
        self.assertTrue(result.isprintable())
        self.assertLessEqual(len(result), limit)
        result.encode()
