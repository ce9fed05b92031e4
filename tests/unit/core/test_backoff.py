"""Waits for Telegram, in tables."""

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.backoff import (
    backoff,
    conflict_wait,
    identity_wait,
    retry_after,
    room_wait,
    storage_wait,
)


class WaitTests(SynchronousTestCase):
    def test_backoff_doubles_to_a_minute(self) -> None:
        self.assertEqual([backoff(n, 0) for n in range(8)], [1, 2, 4, 8, 16, 32, 60, 60])
        self.assertEqual(backoff(0, 1), 1.25)
        self.assertEqual(backoff(9, 0.5), 67.5)
        self.assertEqual(backoff(10**9, 0), 60)

    def test_storage(self) -> None:
        self.assertEqual([storage_wait(n, 0) for n in range(6)], [1, 2, 4, 6, 6, 6])
        self.assertEqual(storage_wait(9, 1), 7.5)

    def test_conflicts(self) -> None:
        self.assertEqual([conflict_wait(n) for n in range(6)], [5, 15, 30, 60, 60, 60])

    def test_identity(self) -> None:
        self.assertEqual([identity_wait(n) for n in range(6)], [60, 120, 240, 480, 600, 600])

    def test_room(self) -> None:
        self.assertEqual([room_wait(n) for n in range(8)], [1, 2, 4, 8, 16, 32, 60, 60])


class RetryAfterTests(SynchronousTestCase):
    def test_the_parameter_goes_first(self) -> None:
        self.assertEqual(retry_after(7, [b"9"]), 7)

    def test_then_the_header(self) -> None:
        for parameter in (None, 0, -1, 1.5, True, "7", [7]):
            self.assertEqual(retry_after(parameter, [b"9"]), 9)
            self.assertIsNone(retry_after(parameter, []))

    def test_headers_that_say_nothing(self) -> None:
        for header in (
            [b"0"],
            [b"-5"],
            [b"+3"],
            [b"1.5"],
            [b"1e3"],
            [b""],
            [b" 7"],
            [b"1_0"],
            ["٧".encode()],
        ):
            self.assertIsNone(retry_after(None, header), header)
        self.assertIsNone(retry_after(None, [b"7", b"7"]))

    def test_long_ones(self) -> None:
        self.assertEqual(retry_after(10**12, []), 10**12)
        self.assertEqual(retry_after(None, [b"0" * 5000 + b"7"]), 7)
        self.assertGreater(retry_after(None, [b"9" * 5000]) or 0, 86_400)
