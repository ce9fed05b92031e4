"""API keys (contract 3)."""

from __future__ import annotations

import hashlib

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.keys import check_name, digest, new_key
from telegrammer.core.problems import InvalidRequest


class KeyTests(SynchronousTestCase):
    def test_a_key_is_64_hexadecimal_digits(self) -> None:
        self.assertEqual(new_key(bytes(range(32))), bytes(range(32)).hex())

    def test_no_key_of_too_little_randomness(self) -> None:
        for size in (0, 31, 33):
            self.assertRaises(ValueError, new_key, bytes(size))

    def test_the_digest_is_the_same_for_text_and_bytes(self) -> None:
        self.assertEqual(digest(b"key"), hashlib.sha256(b"key").digest())
        self.assertEqual(digest("key"), digest(b"key"))


class NameTests(SynchronousTestCase):
    def test_names(self) -> None:
        for name in ("a", "monitoring on host 3", "é" * 64, "a" * 128):
            self.assertEqual(check_name(name), name)

    def test_refused_names(self) -> None:
        for name in ("", "a" * 129, "é" * 65, "a\nb", "a\x00", "\x7f", "\x85", "a\u2028b", "\ud83d"):
            problem = self.assertRaises(InvalidRequest, check_name, name)
            self.assertEqual(problem.field, "name")
            problem.message.encode("ascii")
