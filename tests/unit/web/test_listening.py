"""Opening ports or refusing, what is said of them, and how they are closed."""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory
from typing import Any, cast

from attrs import define, field
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import ILogObserver, LogEvent, formatEvent, globalLogPublisher
from twisted.python.lockfile import FilesystemLock
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import StartRefused
from telegrammer.web.listening import Listening, Ports, _shown, _why, tcp_endpoint
from telegrammer.web.site import GatewaySite


@define(eq=False)
class FakeSite:
    drained: Deferred[None] = field(factory=Deferred)
    draining: bool = False

    def drain(self) -> Deferred[None]:
        self.draining = True
        return self.drained


class Taken(MemoryReactorClock):
    """Has one port that is not free; deals with the locks of UNIX sockets as Twisted's reactors do."""

    def __init__(self) -> None:
        super().__init__()
        self.locks = True
        self.unlocked = 0
        self.bound: list[str] = []

    def listenUNIX(
        self, address: Any, factory: Any, backlog: int = 50, mode: int = 0o666, wantPID: Any = 0
    ) -> Any:
        lock = FilesystemLock(f"{address}.lock") if wantPID and self.locks else None
        if lock is not None and not lock.lock():
            raise CannotListenError(None, address.encode(), cast(Any, "Cannot acquire lock"))
        if address in self.bound:
            raise CannotListenError(None, address.encode(), OSError(98, "Address already in use"))
        if address.endswith("too-long"):
            raise CannotListenError(None, address.encode(), OSError("AF_UNIX path too long"))
        port = super().listenUNIX(address, factory, backlog, mode, wantPID)
        self.bound.append(address)

        def lost(reason: object) -> None:
            self.bound.remove(address)
            if lock is not None:
                lock.unlock()
                self.unlocked += 1

        port.connectionLost = lost
        return port

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> Any:
        if port == 81:
            raise CannotListenError(interface, port, OSError(98, "Address already in use"))
        return super().listenTCP(port, factory, backlog, interface)


class ListeningTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = Taken()
        self.site = FakeSite()
        self.said: list[str] = []

        def observe(event: LogEvent) -> None:
            self.said.append(formatEvent(event))

        globalLogPublisher.addObserver(cast(ILogObserver, observe))
        self.addCleanup(globalLogPublisher.removeObserver, cast(ILogObserver, observe))

    def ports(self, *endpoints: str) -> Ports:
        return Ports(endpoints, cast(GatewaySite, self.site), self.reactor)

    def refusal(self, *endpoints: str) -> str:
        return str(self.assertRaises(StartRefused, self.ports(*endpoints).startService))

    def test_a_taken_port_is_named(self) -> None:
        self.assertEqual(
            self.refusal(tcp_endpoint("127.0.0.1", 81)),
            "cannot listen on 127.0.0.1:81: address already in use",
        )

    def test_an_endpoint_nobody_knows(self) -> None:
        for endpoint in ("carrier-pigeon:1", "tcp:x", "tcp", ""):
            self.assertIn("not a server endpoint", self.refusal(endpoint), endpoint)

    def test_a_key_file_that_is_not_there(self) -> None:
        line = self.refusal("ssl:8443:privateKey=/nowhere/key.pem")
        self.assertEqual(
            line, "cannot listen on ssl:8443:privateKey=/nowhere/key.pem: no such file or directory"
        )

    def test_other_causes_are_told_in_words(self) -> None:
        for error, why in (
            (
                CannotListenError(None, "/a", cast(Any, "Cannot acquire lock")),
                "another process listens there",
            ),
            (OSError("AF_UNIX path too long"), "af_unix path too long"),
            (IndexError("list index out of range"), "no such socket was passed to this process"),
            (RuntimeError("what it says may hold anything"), "RuntimeError"),
        ):
            self.assertEqual(_why(error), why)

    def test_what_was_open_is_closed_when_another_is_refused(self) -> None:
        closed: list[object] = []
        ports = self.ports("tcp:80", "tcp:81")
        original = self.reactor.listenTCP

        def listen(*arguments: Any, **named: Any) -> Any:
            port = original(*arguments, **named)
            port.connectionLost = closed.append
            return port

        self.reactor.listenTCP = listen  # type: ignore[method-assign]
        self.assertRaises(StartRefused, ports.startService)
        self.assertEqual(len(closed), 1)
        self.assertEqual(ports._ports, [])
        self.assertFalse(ports.running)

    def test_no_lock_stays_beside_a_socket_that_could_not_be(self) -> None:
        directory = self.directory()
        self.refusal(f"unix:{directory}/a", f"unix:{directory}/too-long")
        self.assertEqual(os.listdir(directory), [])

    def test_the_lock_of_another_process_stays(self) -> None:
        directory = self.directory()
        lock = f"{directory}/too-long.lock"
        os.symlink(str(os.getppid()), lock)
        line = self.refusal(f"unix:{directory}/too-long")
        self.assertIn("another process listens there", line)
        # Nor if it came between the failure and the look at the lock; nor is there need of one.
        for lockfile in (0, 1):
            self.reactor.locks = False
            self.assertIn("too long", self.refusal(f"unix:{directory}/too-long:lockfile={lockfile}"))
        self.assertEqual(os.readlink(lock), str(os.getppid()))
        os.remove(lock)
        self.assertIn("too long", self.refusal(f"unix:{directory}/too-long"))

    def test_the_same_socket_twice(self) -> None:
        directory = self.directory()
        for again in ("", ":lockfile=0"):
            self.refusal(f"unix:{directory}/a", f"unix:{directory}/a{again}")
            self.assertEqual(os.listdir(directory), [])
        self.assertEqual(self.reactor.unlocked, 2)

    def directory(self) -> str:
        directory = TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        return directory.name

    def test_says_where_it_listens_only_when_all_has_started(self) -> None:
        ports = self.ports(tcp_endpoint("127.0.0.1", 80), tcp_endpoint("::1", 80))
        ports.startService()
        self.assertEqual(self.said, [])
        Listening([ports]).startService()
        self.assertEqual(self.said, [f"listening on {address}" for address in ports.addresses()])
        self.assertEqual(len(self.said), 2)

    def test_the_stop_closes_the_ports_and_waits_for_requests_in_progress(self) -> None:
        ports = self.ports(tcp_endpoint("127.0.0.1", 80))
        ports.startService()
        listening = Listening([ports])
        listening.startService()
        stopped = listening.stopService()
        self.assertTrue(self.site.draining)
        self.assertEqual(ports._ports, [])
        self.assertNoResult(stopped)
        self.site.drained.callback(None)
        self.successResultOf(stopped)
        ports.stopService()

    def test_two_doors_the_first_is_told_of_first_and_both_close_before_either_is_waited_for(self) -> None:
        api = self.ports(tcp_endpoint("127.0.0.1", 80))
        other = FakeSite()
        webhook = Ports(
            [tcp_endpoint("127.0.0.1", 82)],
            cast(GatewaySite, other),
            self.reactor,
            "webhook listening",
        )
        for ports in (api, webhook):
            ports.startService()
        listening = Listening([api, webhook])
        listening.startService()
        self.assertEqual(
            [line.partition(" on http://")[0] for line in self.said], ["listening", "webhook listening"]
        )
        stopped = listening.stopService()
        self.assertEqual((api._ports, webhook._ports), ([], []))
        self.assertEqual((self.site.draining, other.draining), (True, True))
        self.site.drained.callback(None)
        self.assertNoResult(stopped)
        other.drained.callback(None)
        self.successResultOf(stopped)


class ShownTests(SynchronousTestCase):
    def test_addresses(self) -> None:
        cases: tuple[tuple[str, object, str], ...] = (
            ("tcp:0", IPv4Address("TCP", "127.0.0.1", 8080), "http://127.0.0.1:8080"),
            ("tcp:0:interface=::1", IPv6Address("TCP", "::1", 8080), "http://[::1]:8080"),
            ("ssl:8443", IPv4Address("TCP", "0.0.0.0", 8443), "https://0.0.0.0:8443"),
            ("unix:/run/x", UNIXAddress(b"/run/x"), "unix:/run/x"),
            ("systemd:domain=INET:index=0", object(), "systemd"),
        )
        for endpoint, address, shown in cases:
            self.assertEqual(_shown(endpoint, address), shown)

    def test_an_ipv6_address_is_quoted(self) -> None:
        self.assertEqual(tcp_endpoint("::1", 80), r"tcp:80:interface=\:\:1:backlog=128")
        self.assertEqual(tcp_endpoint("::1", 80, 256), r"tcp:80:interface=\:\:1:backlog=256")
