"""The HTTP front over real sockets, in a process of its own; the peers here are plain and blocking."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from tests.support.front import AUTHORIZED, Answer, chunked, get, parse_answers, post

SECONDS = 30.0
"""The bound of everything that waits; nothing needs a tenth of it."""

TEN_GIB = 10 * 1024**3


@define(eq=False)
class Server:
    """The process, and roads to it."""

    process: subprocess.Popen[str]
    port: int
    tls_port: int
    path: str
    log: Path
    stopping: bool = False

    def stop(self) -> None:
        """Send SIGTERM, once."""
        if not self.stopping:
            self.process.send_signal(signal.SIGTERM)
        self.stopping = True

    def connect(self, kind: str = "tcp") -> socket.socket:
        if kind == "unix":
            peer = socket.socket(socket.AF_UNIX)
            peer.settimeout(SECONDS)
            peer.connect(self.path)
            return peer
        peer = socket.create_connection(
            ("127.0.0.1", self.port if kind == "tcp" else self.tls_port), timeout=SECONDS
        )
        if kind == "tcp":
            return peer
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(peer, suppress_ragged_eofs=True)

    def ask(self, *requests: bytes, kind: str = "tcp") -> list[Answer]:
        """What comes back for these bytes until the server closes."""
        with closing(self.connect(kind)) as peer:
            peer.sendall(b"".join(requests))
            return parse_answers(read_to_end(peer))

    def state(self, query: bytes = b"") -> dict[str, int]:
        [answer] = self.ask(get(b"/health" + query, headers=AUTHORIZED + b"Connection: close\r\n"))
        state: dict[str, int] = json.loads(answer.body)
        return state

    def until(self, wanted: Callable[[dict[str, int]], bool], query: bytes = b"") -> dict[str, int]:
        end = time.monotonic() + SECONDS
        while True:
            state = self.state(query)
            if wanted(state):
                return state
            assert time.monotonic() < end, state

    def until_room(self) -> dict[str, int]:
        """The state, asked until a connection is let in."""
        end = time.monotonic() + SECONDS
        while True:
            try:
                return self.state()
            except (OSError, ValueError):
                assert time.monotonic() < end

    @property
    def peak_memory(self) -> int:
        """In bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024

    @property
    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def reset(peer: socket.socket) -> None:
    """Go so that the server notices, even one that has seen the end of our input: with a reset, over TCP."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def read_to_end(peer: socket.socket) -> bytes:
    received = b""
    while True:
        try:
            piece = peer.recv(65536)
        except ConnectionResetError:
            return received
        if not piece:
            return received
        received += piece


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import trustme

    path = tmp_path_factory.mktemp("tls") / "server.pem"
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(path))
    return path


@contextmanager
def started(directory: Path, certificate: Path, **limits: Any) -> Iterator[Server]:
    log, path = directory / "log", str(directory / "socket")
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.front_server",
                json.dumps(limits),
                "tcp:0:interface=127.0.0.1",
                f"ssl:0:interface=127.0.0.1:privateKey={certificate}:certKey={certificate}",
                f"unix:{path}",
            ],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=Path(__file__).parents[2],
        )
    try:
        assert process.stdout is not None
        ports = [process.stdout.readline() for _ in range(3)]  # all empty when it could not start
        assert all(ports), log.read_text()
        port, tls_port, _ = map(int, ports)
        server = Server(process, port, tls_port, path, log)
        yield server
        server.stop()
        assert process.stdout.readline() == "0\n", "drained"
        process.wait(SECONDS)
        assert "Traceback" not in log.read_text()
        assert "Unhandled" not in log.read_text()
    finally:
        process.kill()
        process.wait(SECONDS)
        process.stdout.close() if process.stdout is not None else None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[Server]:
    """With the product's own limits."""
    with started(tmp_path_factory.mktemp("front"), certificate) as server:
        yield server


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, certificate: Path) -> Iterator[Server]:
    """With limits that end soon."""
    with started(
        tmp_path_factory.mktemp("hasty"),
        certificate,
        head_seconds=0.8,
        idle_seconds=0.8,
        body_stall_seconds=0.8,
        body_seconds=1.6,
        answer_stall_seconds=0.8,
        linger_seconds=0.3,
        wait_seconds=0.8,
    ) as server:
        yield server


@define(eq=False)
class Upload:
    """Sends without end in a thread, while the answer is read here."""

    peer: socket.socket
    head: bytes
    piece: bytes
    sent: int = 0

    def run(self) -> tuple[bytes, float]:
        """The answer, and the seconds until its first byte."""
        begun = time.monotonic()
        self.peer.sendall(self.head)
        thread = threading.Thread(target=self._send)
        thread.start()
        try:
            received = self.peer.recv(65536)
            first = time.monotonic() - begun
            received += read_to_end(self.peer)
        finally:
            thread.join(SECONDS)
        assert not thread.is_alive()
        return received, first

    def _send(self) -> None:
        try:
            while True:
                self.peer.sendall(self.piece)
                self.sent += len(self.piece)
        except OSError:
            pass


@pytest.mark.report("J2")
@pytest.mark.parametrize("kind", ["tcp", "unix"])
@pytest.mark.parametrize("framing", ["declared", "chunked"])
def test_an_upload_without_a_key_costs_nothing(server: Server, kind: str, framing: str) -> None:
    if framing == "declared":
        head = post(headers=b"Expect: 100-continue\r\n").replace(
            b"Content-Length: 2\r\n\r\n{}", b"Content-Length: %d\r\n\r\n" % TEN_GIB
        )
        piece = b"x" * 65536
    else:
        head, piece = chunked(headers=b"", end=b""), b"10000\r\n" + b"x" * 65536 + b"\r\n"
    before, delays = server.peak_memory, []
    for _ in range(9):
        with closing(server.connect(kind)) as peer:
            upload = Upload(peer, head, piece)
            received, delay = upload.run()
        [answer] = parse_answers(received)
        assert (answer.status, answer.code) == (401, "UNAUTHORIZED")
        delays.append(delay)
        assert upload.sent < 32 * 1024**2
    assert sorted(delays)[4] < 0.5  # the median: the machine may stutter
    assert server.peak_memory - before < 4 * 1024**2


def test_an_upload_without_a_key_over_tls(server: Server) -> None:
    before = server.peak_memory
    with closing(server.connect("tls")) as peer:
        peer.sendall(post(headers=b"").replace(b"Length: 2", b"Length: %d" % TEN_GIB))
        [answer] = parse_answers(read_to_end(peer))
    assert answer.status == 401
    assert server.peak_memory - before < 4 * 1024**2


def test_a_client_that_only_reads_when_it_can_send_no_more_still_gets_its_answer(server: Server) -> None:
    with closing(server.connect()) as peer:
        peer.sendall(post(headers=b"").replace(b"Length: 2", b"Length: %d" % TEN_GIB))
        with pytest.raises(OSError):
            while True:
                peer.sendall(b"x" * 65536)
        assert [answer.status for answer in parse_answers(read_to_end(peer))] == [401]


@pytest.mark.report("J2")
@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
def test_bodies_within_and_beyond_the_limit(server: Server, kind: str) -> None:
    full, close = b"x" * 65536, AUTHORIZED + b"Connection: close\r\n"
    for request in (
        post(full, headers=close),
        chunked(full, headers=close),
        chunked(*[b"x"] * 65536, headers=close),
    ):
        [answer] = server.ask(request, kind=kind)
        assert (answer.status, answer.body) == (200, b"65536")
    for request in (
        post(full + b"x"),
        chunked(full, b"x"),
        chunked(*[b"x" * 10_240] * 20),
        chunked(b'{"chat_id":1,"text":"x"}', full),
    ):
        [answer] = server.ask(request, kind=kind)
        assert (answer.status, answer.code) == (413, "BODY_TOO_LARGE")


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
def test_pipelining_and_keep_alive(server: Server, kind: str) -> None:
    last = get(headers=AUTHORIZED + b"Connection: close\r\n")
    answers = server.ask(post(b"1"), get(headers=b""), chunked(b"22"), get(b"/x"), last, kind=kind)
    assert [answer.status for answer in answers] == [200, 401, 200, 404, 200]
    assert [answers[index].body for index in (0, 2, 4)] == [b"1", b"2", b"xx"]


def test_a_request_smuggled_in_a_refused_body(server: Server) -> None:
    for request in (
        post(get(), headers=b""),
        chunked(get(), headers=b"") + get(),
        post(get()).replace(b"json", b"x"),
    ):
        answers = server.ask(request)
        assert len(answers) == 1
        assert answers[0].status in (401, 415)


@pytest.mark.parametrize(
    "request_bytes",
    [
        post().replace(b"Content-Length: 2", b"Content-Length: 2\r\nTransfer-Encoding: chunked"),
        post().replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length: 2"),
        post().replace(b"Content-Length: 2", b"Content-Length: " + b"9" * 5000),
        post().replace(b"Content-Length: 2", b"Content-Length: -1"),
        get().replace(b"\r\n", b"\n"),
        get().replace(b"Host: x\r\n", b"Host: x\r\n folded\r\n"),
        get().replace(b"Host: x\r\n", b""),
        get().replace(b"HTTP/1.1", b"HTTP/3"),
        chunked(end=b"zz\r\n"),
        get(b"/" + b"x" * 20_000),
        b"\x16\x03\x01" + bytes(range(256)),
    ],
)
def test_malformed(server: Server, request_bytes: bytes) -> None:
    [answer] = server.ask(request_bytes)
    assert (answer.status, answer.code) == (400, "BAD_REQUEST")
    assert answer.headers[b"content-type"] == b"application/json"
    assert answer.headers[b"server"] == b"telegrammer"


def test_hosts_and_paths_that_klein_could_not_digest(server: Server) -> None:
    close = AUTHORIZED + b"Connection: close\r\n"
    for host in (b"a..b", b"[", b"x" * 300, b"%ff", b""):
        [answer] = server.ask(get(headers=close).replace(b"Host: x", b"Host: " + host))
        assert answer.status == 200
    for path in (b"/%ff", b"//send", b"/send/", b"/%2Fsend", b"/subscriptions/%00"):
        [answer] = server.ask(get(path, headers=close))
        assert (answer.status, answer.code) == (404, "NOT_FOUND")


def test_expect(server: Server) -> None:
    with closing(server.connect()) as peer:
        head, body = post(b"x" * 10, headers=AUTHORIZED + b"Expect: 100-continue\r\n").split(b"\r\n\r\n")
        peer.sendall(head + b"\r\n\r\n")
        assert peer.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        peer.sendall(body)
        assert parse_answers(peer.recv(65536))[0].body == b"10"


def test_old_http(server: Server) -> None:
    [answer] = server.ask(get().replace(b"HTTP/1.1\r\nHost: x", b"HTTP/1.0\r\nX: y"))
    assert (answer.status, answer.body, answer.headers[b"connection"]) == (200, b"xx", b"close")


def test_head(server: Server) -> None:
    with closing(server.connect()) as peer:
        peer.sendall(get(method=b"HEAD", headers=AUTHORIZED + b"Connection: close\r\n"))
        received = read_to_end(peer)
    [answer] = parse_answers(received, head_only=True)
    assert (answer.status, answer.headers[b"content-length"], answer.body) == (200, b"2", b"")


@pytest.fixture
def tolerant(tmp_path: Path, certificate: Path) -> Iterator[Server]:
    """With the product's limits, but that a turn is waited for as long as a test may take."""
    with started(tmp_path, certificate, wait_seconds=60) as server:
        yield server


def test_eighty_at_once(tolerant: Server) -> None:
    server = tolerant
    peers = [server.connect() for _ in range(80)]
    try:
        for peer in peers[:8]:
            peer.sendall(post(b"hold"))
        server.until(lambda state: state["running"] == 8)
        for peer in peers[8:72]:
            peer.sendall(post(b"hold"))
        server.until(lambda state: state["waiting"] == 64)
        for peer in peers[72:]:
            peer.sendall(post(b"hold"))
        refused = [parse_answers(peer.recv(65536))[0] for peer in peers[72:]]
        assert {(answer.code, answer.headers[b"retry-after"]) for answer in refused} == {("OVERLOADED", b"1")}
        for peer in peers[40:72]:  # half of those who wait leave
            peer.close()
        state = server.until(lambda state: state["waiting"] == 32)
        assert (state["running"], state["most"]) == (8, 8)
        while state["running"] or state["waiting"]:
            state = server.state(b"?release")
        assert [parse_answers(peer.recv(65536))[0].status for peer in peers[:40]] == [200] * 40
    finally:
        for peer in peers:
            peer.close()
    state = server.state()
    assert state["begun"] == 40
    assert (state["most"], state["slots"], state["waiting"]) == (8, 0, 0)


def test_leaving_in_the_middle_leaks_nothing(server: Server) -> None:
    server.until(lambda state: state["connections"] == 1)
    before = server.descriptors
    for request in (
        b"GET",
        get()[:-2],
        post()[:-1],
        chunked(b"x", end=b""),
        post(b"hold"),
        post(headers=b"")[:-1],
    ):
        for kind in ("tcp", "unix", "tls"):
            with closing(server.connect(kind)) as peer:
                peer.sendall(request)
    # Over TCP, who is gone looks like who sends no more, until it gets its answer.
    state = server.until(lambda state: state["connections"] == 1, b"?release")
    assert (state["slots"], state["running"], state["waiting"]) == (0, 0, 0)
    assert server.descriptors <= before + 1


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_caller_that_sends_no_more_gets_its_answers(server: Server, kind: str) -> None:
    for request, statuses in (
        (get(), [200]),
        (get(b"/subscriptions?3000000"), [200]),
        (post(b"12"), [200]),
        (chunked(b"12"), [200]),
        (get(headers=b""), [401]),
        (post(headers=b""), [401]),
        (post(b"1") + get() + get(b"/nowhere"), [200, 200, 404]),
        (post(b"1") + get()[:-2], [200]),
        (post(b"1") + post(b"12")[:-1], [200]),
        (b"nonsense\r\n", [400]),
        (b"", []),
        (get()[:-2], []),
        (post(b"12")[:-1], []),
        (chunked(b"12", end=b""), []),
    ):
        begun = time.monotonic()
        with closing(server.connect(kind)) as peer:
            peer.sendall(request)
            peer.shutdown(socket.SHUT_WR)
            answers = parse_answers(read_to_end(peer))
        assert [answer.status for answer in answers] == statuses, request
        assert time.monotonic() - begun < 4  # by no limit, the shortest of which is 5 s
    assert server.until(lambda state: state["connections"] == 1)["slots"] == 0


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_caller_that_sends_no_more_waits_for_its_answer(server: Server, kind: str) -> None:
    with closing(server.connect(kind)) as peer:
        peer.sendall(post(b"hold"))
        peer.shutdown(socket.SHUT_WR)
        server.until(lambda state: state["running"] == 1)
        used, begun = server.processor_seconds, time.monotonic()
        for _ in range(20):
            assert server.state()["running"] == 1
        # That is 20 ms of waiting for each; a reactor that spins uses them all.
        assert server.processor_seconds - used < 0.6 * (time.monotonic() - begun)
        server.until(lambda state: state["running"] == 0, b"?release")
        [answer] = parse_answers(read_to_end(peer))
        assert (answer.status, answer.body) == (200, b"4")


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_caller_that_sends_no_more_and_then_goes(server: Server, kind: str) -> None:
    peer = server.connect(kind)
    peer.sendall(post(b"hold"))
    peer.shutdown(socket.SHUT_WR)
    server.until(lambda state: state["running"] == 1)
    reset(peer)
    state = server.until(lambda state: state["running"] == 0)
    assert (state["slots"], state["connections"]) == (0, 1)
    server.state(b"?release")


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_the_stop_waits_for_a_caller_that_sends_no_more_until_it_goes(
    tmp_path: Path, certificate: Path, kind: str
) -> None:
    with started(tmp_path, certificate) as server, closing(server.connect()) as idle:
        running = server.connect(kind)
        running.sendall(post(b"hold"))
        running.shutdown(socket.SHUT_WR)
        server.until(lambda state: state["running"] == 1)
        server.stop()
        assert read_to_end(idle) == b""
        assert server.process.poll() is None
        reset(running)


def test_slow_heads_and_bodies_end(hasty: Server) -> None:
    """Of all kinds and at once, for each takes its time."""
    cases = [
        (kind, *case)
        for kind in ("tcp", "unix", "tls")
        for case in (
            (b"", b"", []),
            (b"GET / HTTP/1.1\r\n", b"X: y\r\n", [408]),
            (post(b"x" * 100)[:-100], b"", [408]),
            (post(b"x" * 100)[:-100], b"x", [408]),
            (chunked(b"x", end=b""), b"1\r\nx\r\n", [408]),
            (get(), b"", [200]),
        )
    ]

    def statuses(kind: str, first: bytes, trickle: bytes, expected: list[int]) -> list[int]:
        with closing(hasty.connect(kind)) as peer:
            peer.sendall(first)
            received = trickling(peer, trickle)
        return [answer.status for answer in parse_answers(received)]

    with ThreadPoolExecutor(len(cases)) as pool:
        found = list(pool.map(lambda case: statuses(*case), cases))
    assert found == [expected for *_, expected in cases]


def trickling(peer: socket.socket, trickle: bytes) -> bytes:
    """What comes from a server that closes although it gets this again and again."""
    peer.settimeout(0.05)
    received, end = b"", time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            piece = peer.recv(65536)
        except (TimeoutError, ssl.SSLWantReadError):
            with suppress(ConnectionError, ssl.SSLError):  # it is about to close: what it said comes yet
                peer.sendall(trickle)
            continue
        except ConnectionError:
            return received
        if not piece:
            return received
        received += piece
    pytest.fail("never closed")


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
def test_a_peer_that_never_reads_is_cut(hasty: Server, kind: str) -> None:
    """Pipelining answers without reading them fills every buffer on the way, and no more."""
    before = hasty.peak_memory
    with closing(hasty.connect(kind)) as peer:
        with pytest.raises(OSError):
            while True:
                peer.sendall(get(b"/subscriptions?1000000"))
    hasty.until(lambda state: state["connections"] == 1)
    assert hasty.peak_memory - before < 16 * 1024**2


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
def test_a_slow_reader_gets_everything(hasty: Server, kind: str) -> None:
    size = 5_000_000
    with closing(hasty.connect(kind)) as peer:
        peer.sendall(get(b"/subscriptions?%d" % size, headers=AUTHORIZED + b"Connection: close\r\n"))
        received = bytearray()
        while piece := peer.recv(65536):
            if len(received) // 500_000 < (len(received) + len(piece)) // 500_000:
                time.sleep(0.1)  # this is what makes it slow; nothing is waited for
            received += piece
    assert len(parse_answers(bytes(received))[0].body) == size


def test_waiting_too_long(hasty: Server) -> None:
    peers = [hasty.connect() for _ in range(9)]
    try:
        for peer in peers[:8]:
            peer.sendall(post(b"hold"))
        hasty.until(lambda state: state["running"] == 8)
        peers[8].sendall(post(b"hold"))
        assert parse_answers(peers[8].recv(65536))[0].code == "OVERLOADED"
    finally:
        hasty.state(b"?release")
        for peer in peers:
            peer.close()


def test_connections_beyond_the_limit(tmp_path: Path, certificate: Path) -> None:
    with started(tmp_path, certificate, connections=3) as server:
        peers = [server.connect() for _ in range(3)]
        for peer in peers:
            peer.sendall(get())
            assert parse_answers(peer.recv(65536))[0].status == 200
        for kind in ("tcp", "unix", "tls"):
            with pytest.raises(OSError), closing(server.connect(kind)) as beyond:
                beyond.sendall(get())
                if not beyond.recv(100):
                    raise ConnectionResetError
        for peer in peers:
            peer.sendall(get())  # they are not disturbed
            assert parse_answers(peer.recv(65536))[0].status == 200
            peer.close()
        assert server.until_room()["connections"] == 1


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
def test_the_stop(tmp_path: Path, certificate: Path, kind: str) -> None:
    with started(tmp_path, certificate, workers=1) as server:
        idle, running, waiting, uploading = (server.connect(kind) for _ in range(4))
        with closing(idle), closing(running), closing(waiting), closing(uploading):
            idle.sendall(get())
            assert parse_answers(idle.recv(65536))[0].status == 200
            running.sendall(post(b"hold"))
            server.until(lambda state: state["running"] == 1)
            waiting.sendall(post(b"hold"))
            uploading.sendall(post(b"hold")[:-1])
            server.until(lambda state: state["waiting"] == 1 and state["connections"] == 5)
            releasing = server.connect()
            with closing(releasing):
                server.stop()
                assert read_to_end(idle) == b""
                for refused in (waiting, uploading):
                    assert parse_answers(read_to_end(refused))[0].code == "OVERLOADED"
                assert server.process.poll() is None
                reset(running)  # its handler is cancelled, and the last turn over
                assert read_to_end(releasing) == b""


def test_an_idle_stop_is_quick_though_peers_do_not_answer_its_goodbye(
    tmp_path: Path, certificate: Path
) -> None:
    with started(tmp_path, certificate, linger_seconds=20, answer_stall_seconds=20) as server:
        peers = [server.connect(kind) for kind in ("tcp", "unix", "tls") for _ in range(3)]
        for peer in peers:
            peer.sendall(get())
            peer.recv(65536)
        begun = time.monotonic()
        server.stop()
        server.process.wait(SECONDS)
        assert time.monotonic() - begun < 4
        for peer in peers:
            peer.close()
