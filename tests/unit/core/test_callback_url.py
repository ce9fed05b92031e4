"""Callback URLs (contract 2.2)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.callback_url import CallbackTarget, canonical, target_of
from telegrammer.core.problems import InvalidRequest

_AUTHORITY = st.text(alphabet="abAZ019-_.:[]@%xnüßé。．１ f\\℀\u200d\u00ad", max_size=20) | st.text(
    max_size=12
)
_LABELS = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=3).map(".".join)
_REST = st.text(alphabet="/?#%aF0 é\\&=.~", max_size=20) | st.text(max_size=12)
URLS = st.one_of(
    st.text(),
    st.builds(
        "{}{}{}".format, st.sampled_from(["http://", "HTTPS://", "http:", "//", "ftp://"]), _AUTHORITY, _REST
    ),
    st.builds("http://{}{}".format, _LABELS, _REST),
    st.builds("http://[{}]{}".format, st.ip_addresses(v=6), _REST),
    st.builds("http://{}:{}/".format, st.ip_addresses(v=4), st.integers(-1, 70_000)),
)


class CanonicalTests(SynchronousTestCase):
    @pytest.mark.report("bewdes/LSPanel#51")
    def test_one_spelling(self) -> None:
        for url, spelled in (
            ("http://h", "http://h/"),
            ("HTTP://H:80/x", "http://h/x"),
            ("https://h:443", "https://h/"),
            ("https://h:80/", "https://h:80/"),
            ("http://h:00443/", "http://h:443/"),
            ("http://h?x", "http://h/?x"),
            ("http://h?", "http://h/?"),
            ("http://h/?", "http://h/?"),
            ("http://localhost:65535/hook", "http://localhost:65535/hook"),
            ("http://My_Service:8080/hook", "http://my_service:8080/hook"),
            ("http://r3---sn-x.example/", "http://r3---sn-x.example/"),
            ("http://127.0.0.1:1/", "http://127.0.0.1:1/"),
            ("http://10.0.0.1/", "http://10.0.0.1/"),
            ("http://[::1]:8080/x", "http://[::1]:8080/x"),
            ("http://[0:0:0:0:0:0:0:1]", "http://[::1]/"),
            ("http://[2001:DB8::00FF]:80/", "http://[2001:db8::ff]/"),
            ("http://[::FFFF:127.0.0.1]/", "http://[::ffff:127.0.0.1]/"),
            ("http://[::ffff:7f00:1]/", "http://[::ffff:127.0.0.1]/"),
            ("http://Bücher.example/", "http://xn--bcher-kva.example/"),
            ("http://bu\u0308cher.example/", "http://xn--bcher-kva.example/"),
            ("http://XN--BCHER-KVA.example/", "http://xn--bcher-kva.example/"),
            ("http://faß.example/", "http://xn--fa-hia.example/"),
            ("http://a．b。c/", "http://a.b.c/"),
            ("http://１２７.0.0.1/", "http://127.0.0.1/"),
            ("http://my_svc.bücher.example/", "http://my_svc.xn--bcher-kva.example/"),
        ):
            with self.subTest(url):
                self.assertEqual(canonical(url), spelled)

    def test_path_and_query_stay_byte_for_byte(self) -> None:
        for rest in (
            "/a%2fb?x=%7e&y=a+b",
            "//a/../b/./",
            "/?b=2&a=1&b=1",
            "/x?y?z=/:@[]'\"<>{}|^`",
            "/%E2%98%83",
            "/" + "a" * 2000,
        ):
            self.assertEqual(canonical("http://H" + rest), "http://h" + rest)

    @pytest.mark.report("hyperdxio/hyperdx#2672")
    def test_refused(self) -> None:
        for url in (
            *(
                "",
                "h",
                "/x",
                "//h/x",
                "http:h",
                "http:/h",
                "http//h",
                "ftp://h/",
                "httpſ://h/",
                "file:///etc/passwd",
            ),
            *(
                "http://",
                "http:///x",
                "http://?x",
                "http://:80/",
                "http://user@h/",
                "http://u:p@h/",
                "http://@h/",
            ),
            *("http://h/#f", "http://h/#", "http://h#", "http://h?x#y"),
            *(
                "http://h:/x",
                "http://h:0/",
                "http://h:65536/",
                "http://h:-1/",
                "http://h:+1/",
                "http://h:8o/",
            ),
            *("http://h:1:2/", "http://h:" + "9" * 1000 + "/", "http://h:١/"),
            *(" http://h/", "http://h/ ", "http://a\tb/", "http://h/a\nb", "http://h/a b", "http://h/\x7f"),
            *(
                "http://h/\x85",
                "http://h/\u00a0",
                "http://h/\u3000",
                "http://h\\@evil/",
                "http://h/a\\b",
                "http://h/\x00",
            ),
            *(
                "http://a..b/",
                "http://.a/",
                "http://localhost./x",
                "http://./",
                "http://a\u3002/",
                "http://\u00ad/",
            ),
            *("http://" + "a" * 64 + "/", "http://" + "é" * 64 + "/", "http://" + "a." * 126 + "aa/"),
            *(
                "http://-a/",
                "http://a-/",
                "http://a%41/",
                "http://a b/",
                "http://a,b/",
                "http://a*b/",
                "http://℀.x/",
            ),
            *(
                "http://xn--n3h.net/",
                "http://☃.net/",
                "http://xn--/",
                "http://xn--a/",
                "http://xn--zzzzzz999999/",
            ),
            *(
                "http://0x7f.1/",
                "http://127.1/",
                "http://2130706433/",
                "http://1.2.3.04/",
                "http://1.2.3.256/",
            ),
            *("http://1.2.3.4.5/", "http://a.1/", "http://a.0x/", "http://a.0X1f/", "http://１２７.1/"),
            *(
                "http://[::1/",
                "http://::1/",
                "http://[::1]x/",
                "http://[::1]:/",
                "http://[]/",
                "http://[v1.x]/",
            ),
            *(
                "http://[fe80::1%25eth0]/",
                "http://[fe80::1%eth0]/",
                "http://[::g]/",
                "http://[1.2.3.4]/",
                "http://[::1]]/",
            ),
            *(
                "http://h/é",
                "http://h/?é",
                "http://h/%",
                "http://h/%z1",
                "http://h/?%1",
                "http://h/?%1g",
                "http://h/\ud83d",
            ),
            # Hosts with a character that UTS 46 does not allow: the mark of a bad decoding, one not assigned.
            *("http://a\ufffd.net/", "http://a\u0378.net/"),
        ):
            with self.subTest(ascii(url[:60])):
                problem = self.assertRaises(InvalidRequest, canonical, url)
                self.assertEqual(problem.field, "callback_url")

    def test_the_limit_is_for_the_url_as_sent(self) -> None:
        longest = "http://h?" + "x" * 2039
        self.assertEqual(len(canonical(longest)), 2049)
        problem = self.assertRaises(InvalidRequest, canonical, longest + "x")
        self.assertIn("2049", problem.message)
        self.assertIn("2048", problem.message)
        self.assertIn(
            "4091", self.assertRaises(InvalidRequest, canonical, "http://é.x/?" + "é" * 2039).message
        )

    def test_hosts_at_their_longest(self) -> None:
        for host in ("a" * 63, "a." * 126 + "a", "_", "_dmarc.x_"):
            self.assertEqual(canonical(f"http://{host}/"), f"http://{host}/")

    def test_a_refusal_does_not_repeat_the_url(self) -> None:
        for url in ("http://u:hunter2@h/", "http://h/?hunter2#", "http://hunter2..x/", "http://h/hunter2%"):
            self.assertNotIn("hunter2", self.assertRaises(InvalidRequest, canonical, url).message)

    @pytest.mark.report("twisted/twisted#8190")
    @given(URLS)
    @example("http://xn--fa-hia.example/")
    def test_accepted_urls_can_be_called(self, url: str) -> None:
        try:
            spelled = canonical(url)
        except InvalidRequest as problem:
            self.assertEqual(problem.field, "callback_url")
            problem.message.encode("ascii")
            return
        assert spelled.isascii()
        self.assertEqual(canonical(spelled), spelled)
        target = target_of(spelled)
        self.assertEqual(target, target_of(url))
        self.assertIn(target.scheme, ("http", "https"))
        self.assertRegex(target.host, r"\A[0-9a-f:.]+\Z" if target.is_ip else r"\A[a-z0-9._-]{1,253}\Z")
        self.assertTrue(1 <= target.port <= 65535)
        self.assertRegex(target.request_target, rb"\A/[!-~]*\Z")
        self.assertRegex(target.host_header, rb"\A[a-z0-9._:\[\]-]+\Z")


class TargetTests(SynchronousTestCase):
    def test_a_name(self) -> None:
        self.assertEqual(
            target_of("https://my_service:8443/hook?key=v"),
            CallbackTarget("https", "my_service", 8443, b"my_service:8443", b"/hook?key=v", False),
        )

    def test_an_address(self) -> None:
        self.assertEqual(
            target_of("http://127.0.0.1/"), CallbackTarget("http", "127.0.0.1", 80, b"127.0.0.1", b"/", True)
        )

    def test_an_ipv6_address_is_in_brackets_only_in_the_header(self) -> None:
        self.assertEqual(
            target_of("http://[::1]:8080/x"), CallbackTarget("http", "::1", 8080, b"[::1]:8080", b"/x", True)
        )
        self.assertEqual(target_of("https://[::1]/x").host_header, b"[::1]")

    def test_a_stored_url_that_no_longer_parses(self) -> None:
        for url in ("", "http://a..b/?hunter2", "gopher://h/"):
            self.assertNotIn("hunter2", str(self.assertRaises(ValueError, target_of, url)))

    def test_the_query_is_in_no_repr(self) -> None:
        self.assertNotIn("hunter2", repr(target_of("http://h/?hunter2")))
