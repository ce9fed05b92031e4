from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.config.flags import is_flag, separate_unknown


def separate(*arguments: str) -> tuple[list[str], list[str]]:
    return separate_unknown(arguments, {"--db", "--token-file"}, {"--help", "-h"})


class FlagTests(SynchronousTestCase):
    def test_known_ones_stay_with_their_values(self) -> None:
        arguments = ("--db", "x", "--token-file=y", "-h", "name", "--db", "--help")
        self.assertEqual(separate(*arguments), (list(arguments), []))

    def test_unknown_ones_go_with_what_may_be_their_secret(self) -> None:
        self.assertEqual(separate("--token", "123:abc", "--db", "x"), (["--db", "x"], ["--token"]))
        self.assertEqual(separate("--token=123:abc", "name"), (["name"], ["--token"]))
        self.assertEqual(separate("-t123:abc", "-t", "-h"), (["-h"], ["-t", "-t"]))
        self.assertEqual(separate("--help=1"), ([], ["--help"]))

    def test_no_flag_is_abbreviated(self) -> None:
        self.assertEqual(separate("--token-fil", "x"), ([], ["--token-fil"]))

    def test_two_dashes_end_the_flags(self) -> None:
        self.assertEqual(separate("--", "--token", "x"), (["--", "--token", "x"], []))

    def test_what_a_flag_is(self) -> None:
        self.assertEqual([is_flag(text) for text in ("-x", "--x", "--")], [True] * 3)
        self.assertEqual([is_flag(text) for text in ("", "-", "x", "-5", "-12")], [False] * 5)

    @given(st.lists(st.text(alphabet="-=adbh ", max_size=5), max_size=6))
    def test_whatever_is_typed_is_kept_or_named(self, arguments: list[str]) -> None:
        kept, unknown = separate(*arguments)
        self.assertEqual([one for one in kept if one not in arguments], [])
        self.assertTrue(all("=" not in name for name in unknown))
