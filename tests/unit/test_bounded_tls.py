from __future__ import annotations

from OpenSSL import SSL
from twisted.internet.interfaces import IOpenSSLServerConnectionCreator
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.ssl import ContextFactory
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from telegrammer.bounded_tls import ALLOWANCE, OVERHEAD, BoundedConnection, BoundedServerConnections
from tests.support.certificates import Authority, Server

TAKES_LEAVE = b"\x15\x03\x03\x00\x02\x01\x00"
"""An alert: close_notify."""
HELLO_REQUEST = b"\x16\x03\x03\x00\x04\x00\x00\x00\x00"


class ConnectionTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.server = SSL.Connection(Authority().server("server").context, None)
        self.server.set_accept_state()

    def client(self, allowance: int = ALLOWANCE) -> BoundedConnection:
        client = BoundedConnection(SSL.Context(SSL.TLS_CLIENT_METHOD), allowance)
        client.set_connect_state()
        return client

    def greet(self, client: BoundedConnection) -> bytes:
        """The server's part of the handshake; ``client`` has taken none of it."""
        self.assertRaises(SSL.WantReadError, client.do_handshake)
        self.server.bio_write(client.bio_read(65536))
        self.assertRaises(SSL.WantReadError, self.server.do_handshake)
        return self.server.bio_read(65536)

    def shake_hands(self, allowance: int = ALLOWANCE) -> BoundedConnection:
        """What the server says once its handshake is done is not read yet."""
        client = self.client(allowance)
        client.bio_write(self.greet(client))
        client.do_handshake()
        self.server.bio_write(client.bio_read(65536))
        self.server.do_handshake()
        return client

    def test_leave_during_the_handshake_is_an_error_with_a_cause(self) -> None:
        client = self.client()
        self.assertRaises(SSL.WantReadError, client.do_handshake)
        client.bio_write(TAKES_LEAVE)
        error = self.assertRaises(SSL.Error, client.do_handshake)
        self.assertEqual(error.args, ([("", "", "the peer took leave during the handshake")],))

    def test_a_handshake_that_does_not_get_on_ends(self) -> None:
        client = self.client()
        self.assertRaises(SSL.WantReadError, client.do_handshake)
        fed = 0
        while fed + len(HELLO_REQUEST) <= ALLOWANCE:
            client.bio_write(HELLO_REQUEST)
            fed += len(HELLO_REQUEST)
        self.assertRaises(SSL.WantReadError, client.do_handshake)
        client.bio_write(HELLO_REQUEST)
        self.assertRaises(SSL.Error, client.do_handshake)

    def test_records_without_data_end_it(self) -> None:
        """Session tickets, which a server sends after the handshake: however many it likes."""
        before = len(self.greet(self.client()))
        self.setUp()
        client = self.shake_hands(before + 100)
        tickets = self.server.bio_read(65536)
        self.assertGreater(len(tickets), 200)
        client.bio_write(tickets)
        error = self.assertRaises(SSL.Error, client.recv, 1)
        self.assertEqual(error.args, ([("", "", "the peer sends too much that is no data")],))

    def test_each_byte_of_data_allows_for_its_record(self) -> None:
        client = self.shake_hands()
        client.bio_write(self.server.bio_read(65536))
        for _ in range(2 * ALLOWANCE // OVERHEAD):
            self.server.send(b"x")
            client.bio_write(self.server.bio_read(65536))
            self.assertEqual(client.recv(10), b"x")
        self.assertRaises(SSL.WantReadError, client.recv, 1)


class Contexts(ContextFactory):
    def __init__(self, server: Server) -> None:
        self.server = server

    def getContext(self) -> SSL.Context:
        return self.server.context


class ServerTests(SynchronousTestCase):
    def test_who_takes_leave_during_the_handshake_is_let_go(self) -> None:
        """Over plain connections Twisted raises an ``IndexError`` here, into the reactor."""
        connections = BoundedServerConnections(Contexts(Authority().server("server")))
        verifyObject(IOpenSSLServerConnectionCreator, connections)
        factory = TLSMemoryBIOFactory(connections, False, Factory.forProtocol(Protocol), Clock())
        transport = StringTransport()
        protocol = factory.buildProtocol(None)
        assert protocol is not None
        protocol.makeConnection(transport)
        client = SSL.Connection(SSL.Context(SSL.TLS_CLIENT_METHOD), None)
        client.set_connect_state()
        self.assertRaises(SSL.WantReadError, client.do_handshake)
        protocol.dataReceived(client.bio_read(65536))
        protocol.dataReceived(TAKES_LEAVE)
        self.assertTrue(transport.disconnecting)
