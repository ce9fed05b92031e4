"""The envelope and what follows from it: the tables of contract 2.1 and 5.4."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.envelope import (
    identity_outcome,
    read_envelope,
    refused,
    sent_outcome,
    setting_outcome,
    webhook_outcome,
)
from telegrammer.core.telegram import (
    BadCredentials,
    Conflict,
    Done,
    Identity,
    Misbehaved,
    RateLimited,
    Rejected,
    Sent,
    UpstreamFailure,
    WebhookInfo,
)

NO_ENVELOPES = (
    b"",
    b"{",
    b"[]",
    b"null",
    b"<html>502 Bad Gateway</html>",
    b'{"ok":1}',
    b'{"ok":"true"}',
    b'{"ok":null}',
    b"{}",
    b'{"ok":true,"result":{}} {}',
    b'{"ok":true,"result":{"a":NaN}}',
    b'\xef\xbb\xbf{"ok":true,"result":{}}',
    b'{"ok":true,"result":{"a":"\xff"}}',
    b'{"ok":true,"result":{"a":"\xed\xa0\x80"}}',
    '{"ok":true,"result":{}}'.encode("utf-16"),
)
MOVED = {"migrate_to_chat_id": -1001557912345}


def failure(code: object = None, description: object = None, parameters: object = None) -> bytes:
    members = {"ok": False, "error_code": code, "description": description, "parameters": parameters}
    return json.dumps({name: value for name, value in members.items() if value is not None}).encode()


class SentTests(SynchronousTestCase):
    def test_success_is_kept_byte_for_byte(self) -> None:
        for body in (
            b'{"ok":true,"result":{"message_id":1.0,"n":1e3,"id":9007199254740993,"t":"\\ud83d"}}',
            b' {"result" : {} , "ok" : true }\n',
            b'{"ok":true,"result":{"deep":' + b"[" * 20_000 + b"]" * 20_000 + b"}}",
            b'{"ok":true,"result":{"n":' + b"1" * 5000 + b"}}",
        ):
            self.assertEqual(sent_outcome(200, (), body), Sent(body))
        self.assertEqual(sent_outcome(201, (), b'{"ok":true,"result":{}}'), Sent(b'{"ok":true,"result":{}}'))

    def test_not_quite_a_success(self) -> None:
        for result in (b"", b',"result":true', b',"result":[]', b',"result":null', b',"result":"x"'):
            self.assertEqual(sent_outcome(200, (), b'{"ok":true' + result + b"}"), Misbehaved())
        for status in (199, 301, 302, 400, 403, 404, 429, 500, 502):
            self.assertEqual(sent_outcome(status, (), b'{"ok":true,"result":{}}'), Misbehaved())

    @pytest.mark.report("F6")
    def test_no_envelope(self) -> None:
        for body in NO_ENVELOPES:
            for status in (200, 302, 400, 401, 403, 404, 409, 500, 502):
                self.assertEqual(sent_outcome(status, (), body), Misbehaved(), (status, body))

    @pytest.mark.report("E7", "F6")
    def test_refusals(self) -> None:
        words = "Bad Request: chat not found"
        for status, code in ((400, 400), (403, 403), (200, 400), (500, 403), (400, None), (403, None)):
            self.assertEqual(sent_outcome(status, (), failure(code, words)), Rejected(words))
        self.assertEqual(sent_outcome(403, (), failure(403)), Rejected(None))
        self.assertEqual(sent_outcome(400, (), failure(400, 7)), Rejected(None))

    def test_the_code_decides_if_it_is_an_integer(self) -> None:
        for code in (True, "400", 400.0, 401, 404, 409, 500, 0, -400, 10**30):
            self.assertEqual(sent_outcome(200, (), failure(code, "x")), Misbehaved(), code)
        self.assertEqual(sent_outcome(400, (), failure("429", "x")), Rejected("x"))
        self.assertEqual(sent_outcome(400, (), failure(404, "x")), Misbehaved())

    @pytest.mark.report("F6")
    def test_description_is_made_harmless(self) -> None:
        outcome = sent_outcome(400, (), failure(400, "a\n\x1b\ud800" + "b" * 300))
        assert isinstance(outcome, Rejected) and outcome.description is not None
        self.assertTrue(outcome.description.startswith("a\\n\\x1b\\ud800bbb"))
        self.assertEqual(len(outcome.description), 256)

    def test_migration(self) -> None:
        self.assertEqual(
            sent_outcome(400, (), failure(400, "upgraded", MOVED)), Rejected("upgraded", -1001557912345)
        )
        for odd in (0, True, "1", 1.5, 2**63, None):
            outcome = sent_outcome(400, (), failure(400, "x", {"migrate_to_chat_id": odd}))
            self.assertEqual(outcome, Rejected("x", None))
        self.assertEqual(sent_outcome(400, (), failure(400, "x", [1])), Rejected("x", None))

    @pytest.mark.report("F2")
    def test_rate_limit(self) -> None:
        for body, header, expected in (
            (failure(429, "x", {"retry_after": 7}), (b"9",), 7),
            (failure(429, "x"), (b"9",), 9),
            (failure(429, "x"), (), None),
            (failure(429, "x", {"retry_after": "7"}), (), None),
            (failure(429, "x", {"retry_after": 0}), (), None),
            (failure(429, "x", {"retry_after": 1.5}), (), None),
            (failure(429, "x", {"retry_after": True}), (), None),
            (failure(429, "x", {"retry_after": 86_400}), (), 86_400),
            (failure(429, "x", {"retry_after": 86_401}), (), None),
            (failure(429, "x", {"retry_after": 10**12}), (), None),
            (failure(429, "x"), (b"9" * 5000,), None),
            (b"<html>", (b"7",), 7),
            (b"", (), None),
        ):
            self.assertEqual(sent_outcome(429, header, body), RateLimited(expected), (body, header))
        self.assertEqual(sent_outcome(200, (), failure(429, "x")), RateLimited(None))

    @given(st.integers(100, 599), st.binary(max_size=60))
    def test_never_raises(self, status: int, body: bytes) -> None:
        sent_outcome(status, (body,), body)


class RefusedTests(SynchronousTestCase):
    def outcome(self, status: int, body: bytes = b"", header: tuple[bytes, ...] = ()) -> object:
        return refused(status, header, read_envelope(body))

    def test_credentials(self) -> None:
        for code in (401, 404, 421):
            self.assertEqual(self.outcome(code), BadCredentials(code))
            self.assertEqual(self.outcome(code, failure(code, "Unauthorized")), BadCredentials(code))
            self.assertEqual(self.outcome(200, failure(code)), BadCredentials(code))
        self.assertEqual(self.outcome(404, failure()), BadCredentials(404))

    def test_conflicts(self) -> None:
        for words, webhook in (
            ("Conflict: can't use getUpdates method while webhook is active; use deleteWebhook first", True),
            ("Conflict: terminated by setWebhook request", True),
            (
                "Conflict: terminated by other getUpdates request; make sure that only one bot is running",
                False,
            ),
            ("Conflict: terminated by other long poll or webhook", False),
            (None, False),
            (5, False),
        ):
            self.assertEqual(self.outcome(409, failure(409, words)), Conflict(webhook))
        self.assertEqual(self.outcome(409, b"<html>"), Conflict(False))

    def test_rate_limit_is_capped_at_a_day(self) -> None:
        self.assertEqual(self.outcome(429, failure(429, "x", {"retry_after": 5})), RateLimited(5))
        self.assertEqual(self.outcome(429, failure(429, "x", {"retry_after": 10**12})), RateLimited(86_400))
        self.assertEqual(self.outcome(429, b"", (b"3",)), RateLimited(3))
        self.assertEqual(self.outcome(429), RateLimited(None))

    @pytest.mark.report("B4")
    def test_the_rest(self) -> None:
        for status, body in (
            (200, b""),
            (200, failure()),
            (200, failure(400, "secret")),
            (500, failure(500, "Internal Server Error: restart")),
            (502, b"<html>"),
            (302, b""),
            (401, b'{"ok":true,"result":[]}'),
            (200, failure(10**30)),
        ):
            outcome = self.outcome(status, body)
            assert isinstance(outcome, UpstreamFailure), body
            self.assertNotIn("secret", outcome.why)
            self.assertLess(len(outcome.why), 80)


class IdentityTests(SynchronousTestCase):
    def of(self, result: object, status: int = 200) -> object:
        return identity_outcome(status, (), json.dumps({"ok": True, "result": result}).encode())

    def test_identity(self) -> None:
        user = {"id": 123, "is_bot": True, "username": "a_Bot", "can_read_all_group_messages": False}
        self.assertEqual(self.of(user), Identity(123, "a_Bot", False))
        self.assertEqual(self.of({"id": 2**52 - 1}), Identity(2**52 - 1, None, None))
        odd = {"id": 1, "username": "x\ny", "can_read_all_group_messages": 1}
        self.assertEqual(self.of(odd), Identity(1, None, None))

    def test_no_identity(self) -> None:
        results: tuple[object, ...] = (
            None,
            [],
            {},
            {"id": 0},
            {"id": -1},
            {"id": True},
            {"id": "1"},
            {"id": 2**63},
        )
        for result in results:
            self.assertIsInstance(self.of(result), UpstreamFailure)
        self.assertIsInstance(self.of({"id": 1}, 500), UpstreamFailure)

    def test_refusals(self) -> None:
        self.assertEqual(identity_outcome(401, (), failure(401, "Unauthorized")), BadCredentials(401))
        self.assertEqual(identity_outcome(429, (b"3",), b""), RateLimited(3))


class WebhookTests(SynchronousTestCase):
    def of(self, result: object) -> object:
        return webhook_outcome(200, (), json.dumps({"ok": True, "result": result}).encode())

    def test_only_the_host_is_shown(self) -> None:
        info: dict[str, object] = {
            "url": "https://user:pw@Hooks.example:8443/SECRET?token=x",
            "pending_update_count": 4,
        }
        found = self.of(info)
        self.assertEqual(found, WebhookInfo("hooks.example", 4, str(info["url"])))
        self.assertNotIn("SECRET", repr(found))

    def test_none_set(self) -> None:
        self.assertEqual(self.of({"url": ""}), WebhookInfo(None, 0))

    def test_odd_ones(self) -> None:
        for url, host in (("https://[::1", "unknown"), ("/", "unknown"), ("https://a\x1bb/", "a\\x1bb")):
            self.assertEqual(self.of({"url": url, "pending_update_count": True}), WebhookInfo(host, 0, url))
        results: tuple[object, ...] = ({}, {"url": 5}, [], None)
        for result in results:
            self.assertIsInstance(self.of(result), UpstreamFailure)
        self.assertEqual(webhook_outcome(404, (), b""), BadCredentials(404))

    def test_what_telegram_complains_of(self) -> None:
        info = {"url": "https://h/", "last_error_date": 1_793_000_000, "last_error_message": "SECRET\n" * 99}
        body = json.dumps({"ok": True, "result": info}).encode()
        found = webhook_outcome(200, (), body, lambda text: text.replace("SECRET", "[x]"))
        assert isinstance(found, WebhookInfo) and found.last_error is not None
        self.assertEqual(found.last_error_at, 1_793_000_000)
        self.assertTrue(found.last_error.startswith("[x]\\n[x]"))
        self.assertLessEqual(len(found.last_error), 256)

    def test_odd_complaints(self) -> None:
        for at, words in ((True, 5), (-1, ""), ("1", None), (2**63, [])):
            found = self.of({"url": "https://h/", "last_error_date": at, "last_error_message": words})
            self.assertEqual(found, WebhookInfo("h", 0, "https://h/"))


class SettingTests(SynchronousTestCase):
    def test_done(self) -> None:
        for rest in (b',"result":true,"description":"x"', b',"result":null', b""):
            self.assertEqual(setting_outcome(200, (), b'{"ok":true%b}' % rest), Done())

    def test_what_is_no_answer(self) -> None:
        for body in (b'{"ok":1}', b'{"ok":true,"result":false}', b"true", b""):
            self.assertIsInstance(setting_outcome(200, (), body), UpstreamFailure)
        self.assertIsInstance(setting_outcome(500, (), b'{"ok":true,"result":true}'), UpstreamFailure)

    def test_telegrams_own_words(self) -> None:
        words = "Bad Request: bad webhook: SECRET\u2028" + "x" * 300
        for code in (400, 403):
            found = setting_outcome(
                code, (), failure(code, words), lambda text: text.replace("SECRET", "[x]")
            )
            assert isinstance(found, Rejected) and found.description is not None
            self.assertTrue(found.description.startswith("Bad Request: bad webhook: [x]\\u2028x"))
            self.assertEqual(len(found.description), 256)

    def test_refusals(self) -> None:
        self.assertEqual(setting_outcome(404, (), failure(404, "Not Found")), BadCredentials(404))
        self.assertEqual(setting_outcome(429, (b"3",), b""), RateLimited(3))
        self.assertIsInstance(setting_outcome(400, (), b"<html>"), UpstreamFailure)
        self.assertEqual(setting_outcome(409, (), failure(409, "x")), Conflict(False))
