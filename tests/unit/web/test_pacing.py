"""One message at a time, piece by piece, with an end to every stall."""

from __future__ import annotations

from typing import Any

from twisted.internet.abstract import FileDescriptor
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.web.pacing import PacedWriter


class PacedWriterTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock, self.transport, self.stalls = Clock(), StringTransport(), list[None]()
        self.writer = PacedWriter(self.transport, self.clock, 5, lambda: self.stalls.append(None))

    def test_a_transport_that_takes_everything_gets_it(self) -> None:
        self.writer.send(b"x" * 200_000)
        self.assertEqual(len(self.transport.value()), 200_000)
        self.assertFalse(self.writer.busy)

    def test_a_piece_for_each_drain(self) -> None:
        self.writer.paused()
        self.writer.send(b"x" * 100_000)
        self.assertEqual((self.transport.value(), self.writer.busy), (b"", True))
        self.writer.resumed()
        self.assertEqual((len(self.transport.value()), self.writer.busy), (100_000, False))

    def test_a_stall_is_counted_from_its_first_pause(self) -> None:
        self.writer.paused()
        self.clock.advance(4)
        self.writer.paused()
        self.clock.advance(1)
        self.assertEqual(len(self.stalls), 1)

    def test_progress_puts_the_stall_off(self) -> None:
        for _ in range(5):
            self.writer.paused()
            self.clock.advance(4.9)
            self.writer.resumed()
        self.clock.advance(60)
        self.assertEqual(self.stalls, [])

    def test_nothing_is_sent_after_the_close(self) -> None:
        self.writer.paused()
        self.writer.send(b"x")
        self.writer.close()
        self.writer.resumed()
        self.clock.advance(60)
        self.assertEqual((self.transport.value(), self.stalls), (b"", []))

    def test_the_socket_reports_every_byte_it_keeps_under_tls_too(self) -> None:
        descriptor: Any = Descriptor()
        layer: Any = Layer()
        layer.transport = descriptor
        PacedWriter(layer, self.clock, 5, list)
        descriptor.registerProducer(layer, True)
        descriptor.write(b"x")
        self.assertEqual(layer.events, ["paused"])
        descriptor.doWrite()
        self.assertEqual(layer.events, ["paused", "resumed"])
        self.assertEqual(descriptor.bufferSize, FileDescriptor.bufferSize)  # it reads by that, too


class Descriptor(FileDescriptor):
    """A socket that takes everything as soon as it is asked."""

    connected = 1

    def writeSomeData(self, data: bytes) -> int:
        return len(data)

    def startWriting(self) -> None: ...

    def stopWriting(self) -> None: ...


class Layer:
    """What lies between socket and channel, and tells of what it is told."""

    transport: Any

    def __init__(self) -> None:
        self.events: list[str] = []

    def pauseProducing(self) -> None:
        self.events.append("paused")

    def resumeProducing(self) -> None:
        self.events.append("resumed")
