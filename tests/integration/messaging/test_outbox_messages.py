"""What an outbox accepts comes back, byte for byte, from another process (contract 7.1, 7.2)."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from telegrammer.core.messages import BODY_LIMIT, RECIPIENT_LIMIT, RECIPIENTS_LIMIT, SUBJECT_LIMIT
from tests.support.directories import quick_directory
from tests.support.outbox_peer import OutboxPeer

TO = ["operator@example.org"]

# JSON carries lone surrogates, too.
SUBJECTS = st.one_of(
    st.text(min_size=1, max_size=40),
    st.builds(str.__mul__, st.sampled_from("aä€😀"), st.integers(100, SUBJECT_LIMIT + 1)),
)
BODIES = st.one_of(
    st.text(max_size=200),
    st.text(st.sampled_from('\r\n\t .=\u2028\x01\x7f\ufeff😀"\\\0'), max_size=50),
    st.builds(str.__mul__, st.sampled_from('aä"\n'), st.integers(BODY_LIMIT // 2 - 2, BODY_LIMIT + 2)),
)
RECIPIENTS = st.lists(
    st.one_of(
        st.emails(),
        st.just(TO[0]),
        st.builds(lambda size: "a" * size + "@b", st.integers(RECIPIENT_LIMIT - 4, RECIPIENT_LIMIT)),
        st.text(max_size=10),
    ),
    max_size=RECIPIENTS_LIMIT + 2,
)


@pytest.fixture(scope="module")
def peers() -> Iterator[tuple[OutboxPeer, OutboxPeer]]:
    with quick_directory() as directory:
        path = directory / "outbox.db"
        with OutboxPeer(path) as producer, OutboxPeer(path) as worker:
            yield producer, worker


def broken_limit(subject: str, body: str, recipients: list[str]) -> set[str]:
    """Which of the limits a message may be said to break, found without the code that is tested."""
    broken: set[str] = set()
    sizes = [len(text.encode("utf-8", "surrogatepass")) for text in (subject, body)]
    kinds = {unicodedata.category(each) for each in subject}
    if not 1 <= sizes[0] <= SUBJECT_LIMIT or kinds & {"Cc", "Cs"} or subject != subject.strip():
        broken.add("subject")
    if not 1 <= sizes[1] <= BODY_LIMIT or "\0" in body or any("\ud800" <= each <= "\udfff" for each in body):
        broken.add("body")
    if not 1 <= len(recipients) <= RECIPIENTS_LIMIT:
        broken.add("recipients")
    return broken


@given(st.lists(st.tuples(SUBJECTS, BODIES, RECIPIENTS), min_size=5, max_size=15))
@example([(" s", "b", TO), ("s", "b", []), ("s", "b", TO * 17), ("s", "", TO), ("s", "b", ["x"])])
@example([("s", '"' * 40_000, TO), ("s", "b" * BODY_LIMIT, TO * 16), ("s", "\ud800", TO)])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_round_trip(peers: tuple[OutboxPeer, OutboxPeer], messages: list[tuple[str, str, list[str]]]) -> None:
    producer, worker = peers
    accepted: dict[str, list[Any]] = {}
    for message in messages:
        producer.tell("send", message)
    for subject, body, recipients in messages:
        answer = producer.hear()
        if "value" in answer:
            assert broken_limit(subject, body, recipients) == set()
            accepted[answer["value"]] = [subject, body, recipients]
            continue
        assert answer["error"] == "MessageRefused"
        assert answer["limit"] in ("subject", "body", "recipients", "recipient", "record")
        if answer["limit"] in ("subject", "body", "recipients"):
            assert answer["limit"] in broken_limit(subject, body, recipients)
    for message_id, wanted in accepted.items():
        leased = worker.ask("claim")
        assert (leased["id"], leased["message"]) == (message_id, wanted), "in order, and the same"
        worker.ask("acknowledge", message_id, leased["lease"])
    assert worker.refused("claim")["error"] == "QueueEmpty"
