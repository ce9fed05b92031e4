"""Callback URLs put together from parts whose meaning is known, and beside readers of another make."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

import hyperlink
from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.callback_url import MAX_BYTES, canonical, target_of
from telegrammer.core.problems import InvalidRequest

labels = st.from_regex(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,8}[A-Za-z0-9_])?", fullmatch=True).filter(
    lambda label: not label.lower().startswith("xn--")
)
names = (
    st.lists(labels, min_size=1, max_size=3).map(".".join).filter(lambda name: not _ends_in_a_number(name))
)
hosts = st.one_of(
    names.map(lambda name: (name, name.lower())),
    st.ip_addresses(v=4).map(lambda address: (str(address), str(address))),
    st.ip_addresses(v=6).flatmap(
        lambda address: st.sampled_from([str(address), address.exploded, str(address).upper()]).map(
            lambda text: (f"[{text}]", str(address))
        )
    ),
)
ports = st.none() | st.integers(1, 65535) | st.sampled_from([80, 443])
ESCAPE = r"%[0-9A-Fa-f]{2}"
paths = st.from_regex(rf"(/([A-Za-z0-9._~!$&'()*+,;=:@|\"<>{{}}^`-]|{ESCAPE}){{0,6}}){{0,3}}", fullmatch=True)
queries = st.from_regex(rf"(\?([A-Za-z0-9._~!$&'()*+,;=:@/?|-]|{ESCAPE}){{0,12}})?", fullmatch=True)
edits = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.integers(0, 3),
        st.text(max_size=2)
        | st.sampled_from(
            ["@", "#", "\\", "%", "%0", "[", "]", ":", "//", "?", " ", "\t", "\n", "\x7f", "\u3002", ".."]
        ),
    ),
    min_size=1,
    max_size=3,
)


def _ends_in_a_number(name: str) -> bool:
    last = name.lower().rpartition(".")[2]
    return last.isdigit() or (
        last.startswith("0x") and all(digit in "0123456789abcdef" for digit in last[2:])
    )


class PartsTests(SynchronousTestCase):
    @settings(max_examples=200)
    @given(st.sampled_from(["http", "https", "HTTP", "hTTps"]), hosts, ports, paths, queries)
    @example("http", ("[::ffff:1.2.3.4]", "::ffff:1.2.3.4"), None, "", "?")
    def test_every_part_means_what_it_said(
        self, scheme: str, host: tuple[str, str], port: int | None, path: str, query: str
    ) -> None:
        """And path and query are called byte for byte as they were registered."""
        written, meant = host
        url = f"{scheme}://{written}{'' if port is None else f':{port}'}{path}{query}"
        target = target_of(canonical(url))
        default = {"http": 80, "https": 443}[scheme.lower()]
        self.assertEqual((target.scheme, target.port), (scheme.lower(), port or default))
        if target.is_ip:
            self.assertEqual(ipaddress.ip_address(target.host), ipaddress.ip_address(meant))
        else:
            self.assertEqual(target.host, meant)
        self.assertEqual(target.request_target, ((path or "/") + query).encode())

    @settings(max_examples=200)
    @given(hosts, ports, paths, queries)
    def test_spellings_of_one_url_are_one(
        self, host: tuple[str, str], port: int | None, path: str, query: str
    ) -> None:
        written, _ = host
        at = "" if port is None else f":{port}"
        one = canonical(f"http://{written}{at}{path}{query}")
        swapped = written.swapcase()
        self.assertEqual(canonical(f"HTTP://{swapped}{at}{path}{query}"), one)
        if port is None:
            self.assertEqual(canonical(f"http://{written}:80{path}{query}"), one)
            self.assertEqual(canonical(f"http://{written}:00080{path}{query}"), one)
        if not path:
            self.assertEqual(canonical(f"http://{written}{at}/{query}"), one)
        self.assertNotEqual(canonical(f"http://{written}{at}{path}{query}x" if query else one + "x"), one)


class HostileTests(SynchronousTestCase):
    @settings(max_examples=400)
    @given(hosts, ports, paths, queries, edits)
    def test_what_is_taken_other_readers_take_for_the_same(
        self,
        host: tuple[str, str],
        port: int | None,
        path: str,
        query: str,
        changes: list[tuple[int, int, str]],
    ) -> None:
        """Nothing that one parser takes for the host is another's path, or dropped on the way."""
        url = f"http://{host[0]}{'' if port is None else f':{port}'}{path}{query}"
        for start, length, new in changes:
            url = url[:start] + new + url[start + length :]
        try:
            spelled = canonical(url)
        except InvalidRequest as problem:
            self.assertEqual(problem.field, "callback_url")
            self.assertLess(len(problem.message), 200)
            self.assertRaises(ValueError, target_of, url)
            return
        self.assertEqual(canonical(spelled), spelled)
        target = target_of(url)
        for text in (url, spelled):
            other = urlsplit(text)
            if text is spelled or text.isascii():
                self.assertEqual(
                    (other.hostname or "", other.port or target.port),
                    (_shown(text, target.host), target.port),
                )
            self.assertEqual((other.scheme, other.username, other.fragment), (target.scheme, None, ""))
            asked = (other.path or "/") + ("?" + other.query if other.query or "?" in text else "")
            self.assertEqual(asked.encode(), target.request_target)
        third = hyperlink.EncodedURL.from_text(spelled)
        self.assertEqual((third.host.strip("[]"), third.port), (target.host, target.port))

    @given(
        st.integers(1, 3 * MAX_BYTES),
        st.sampled_from(["x", "é", "😀", "%41"]),
        st.sampled_from(["", "?", "h"]),
    )
    def test_the_length_has_a_bound_and_no_cost(self, length: int, piece: str, where: str) -> None:
        for url in (
            f"http://h/{where}" + piece * length,
            "http://" + piece * length,
            "http://h:" + "1" * length,
        ):
            try:
                canonical(url)
            except InvalidRequest:
                continue
            self.assertLessEqual(len(url.encode()), MAX_BYTES)


def _shown(text: str, host: str) -> str:
    """``host`` as a reader gives it that leaves IPv6 literals as they are written."""
    if ":" not in host:
        return host
    written = urlsplit(text).hostname or ""
    return written if ipaddress.ip_address(written) == ipaddress.ip_address(host) else host
