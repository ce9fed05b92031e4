"""The table by which the webhook is kept (contract 8)."""

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.standing import Crashed, Identified, OtherBot, StorageFailed
from telegrammer.core.telegram import (
    BadCredentials,
    Conflict,
    NetworkFailure,
    RateLimited,
    Rejected,
    UpstreamFailure,
    WebhookInfo,
)
from telegrammer.core.webhook import (
    Delivering,
    Elsewhere,
    Event,
    KeeperState,
    Undelivered,
    WebhookSet,
    after_acceptance,
    after_step,
    judged,
    same_url,
)

URL = "https://hooks.example/telegram/webhook"
LISTENING = KeeperState(ask="check", state="listening", is_set=True, complaint_at=0)
EVENTS: tuple[Event, ...] = (
    Identified(),
    OtherBot(42, 43),
    WebhookSet(),
    Rejected("Bad Request: bad webhook"),
    Delivering(0),
    Delivering(7),
    Undelivered("Connection refused"),
    Elsewhere(None),
    Elsewhere("other.example"),
    StorageFailed(),
    StorageFailed(unforeseen=True),
    Crashed(),
    NetworkFailure("x"),
    UpstreamFailure("x"),
    RateLimited(5),
    RateLimited(None),
    BadCredentials(401),
    BadCredentials(404),
    Conflict(False),
)


def run(state: KeeperState, *events: Event) -> tuple[KeeperState, list[float]]:
    rests = []
    for event in events:
        state, rest = after_step(event, state, 0.0)
        rests.append(rest)
    return state, rests


def shown(state: KeeperState) -> tuple[str, str, object, int]:
    return state.ask, state.state, state.reason, state.failures


class StartTests(SynchronousTestCase):
    def test_identity_then_webhook_then_a_look(self) -> None:
        state, rests = run(KeeperState(), Identified())
        self.assertEqual((*shown(state), rests), ("webhook", "starting", None, 0, [0]))
        state, rests = run(state, WebhookSet(), Delivering(0), Delivering(0))
        self.assertEqual((state, rests), (LISTENING, [0, 3, 60]))

    def test_failures_to_set_it(self) -> None:
        for event, reason, waits in (
            (NetworkFailure("x"), "network", [1, 2, 4, 8]),
            (UpstreamFailure("x"), "upstream", [1, 2, 4, 8]),
            (Rejected("bad port"), "upstream", [1, 2, 4, 8]),
            (Conflict(False), "upstream", [1, 2, 4, 8]),
            (RateLimited(9), "rate_limited", [9, 9, 9, 9]),
            (StorageFailed(), "storage", [1, 2, 4, 6]),
        ):
            state, rests = run(KeeperState(), Identified(), *[event] * 4)
            self.assertEqual(shown(state), ("webhook", "backing_off", reason, 4), event)
            self.assertEqual(rests[1:], waits, event)

    def test_a_refused_token_is_asked_about_before_it_is_set_again(self) -> None:
        for status in (401, 404, 421):
            events: list[Event] = [BadCredentials(status), Identified()] * 2
            state, rests = run(KeeperState(), Identified(), *events)
            self.assertEqual(shown(state), ("webhook", "suspended", "credentials", 2))
            self.assertEqual(rests, [0, 60, 0, 120, 0])

    def test_another_bot(self) -> None:
        state, rests = run(KeeperState(), OtherBot(42, 43), OtherBot(42, 43))
        self.assertEqual((*shown(state), rests), ("identity", "suspended", "wrong_bot", 2, [60, 120]))


class CheckTests(SynchronousTestCase):
    def test_another_webhook_suspends_until_ours_is_back(self) -> None:
        for host in (None, "other.example"):
            state, rests = run(LISTENING, Elsewhere(host), Elsewhere(host))
            self.assertEqual(shown(state), ("check", "suspended", "conflict_webhook", 2))
            self.assertEqual(rests, [60, 60])
            self.assertEqual(run(state, Delivering(0)), (LISTENING, [60]))

    def test_it_is_never_set_twice(self) -> None:
        for event in EVENTS:
            state, _ = run(LISTENING, event, Identified(), Identified())
            self.assertEqual((state.ask, state.is_set), ("check", True), event)

    def test_what_telegram_cannot_deliver(self) -> None:
        state, rests = run(LISTENING, Undelivered("x"), Undelivered("x"))
        self.assertEqual((*shown(state), rests), ("check", "backing_off", "network", 2, [60, 60]))
        self.assertEqual(run(state, Delivering(7))[0], evolve(LISTENING, complaint_at=7))

    def test_a_question_that_fails(self) -> None:
        state, rests = run(LISTENING, *[NetworkFailure("x")] * 3)
        self.assertEqual((*shown(state), rests), ("check", "backing_off", "network", 3, [1, 2, 4]))
        self.assertEqual(run(state, Delivering(0))[0], LISTENING)

    def test_a_revoked_token(self) -> None:
        state, rests = run(LISTENING, BadCredentials(401))
        self.assertEqual((*shown(state), rests), ("identity", "listening", None, 0, [0]))
        state, rests = run(state, BadCredentials(401), BadCredentials(401))
        self.assertEqual((*shown(state), rests), ("identity", "suspended", "credentials", 2, [60, 120]))
        state, rests = run(state, Identified())
        self.assertEqual((*shown(state), rests), ("check", "suspended", "credentials", 2, [0]))

    def test_a_server_that_does_not_know_the_question(self) -> None:
        events: list[Event] = [BadCredentials(404), Identified()] * 9
        state, rests = run(LISTENING, *events)
        self.assertEqual((state, rests), (LISTENING, [0, 60] * 9))

    def test_get_me_unanswered_between(self) -> None:
        state, _ = run(LISTENING, BadCredentials(404), NetworkFailure("x"))
        self.assertEqual(shown(state), ("identity", "backing_off", "network", 1))
        self.assertEqual(run(state, Identified()), (LISTENING, [60]))

    def test_a_question_that_alone_is_refused(self) -> None:
        events: list[Event] = [BadCredentials(421), Identified()] * 3
        state, rests = run(LISTENING, *events)
        self.assertEqual(shown(state), ("check", "backing_off", "upstream", 3))
        self.assertEqual(rests, [0, 1, 0, 2, 0, 4])


class AcceptanceTests(SynchronousTestCase):
    def test_disproves_that_telegram_cannot_deliver(self) -> None:
        state, _ = run(LISTENING, *[Undelivered("x")] * 6)
        self.assertEqual(after_acceptance(state), LISTENING)

    def test_does_not_answer_a_question(self) -> None:
        for start in (LISTENING, run(KeeperState(), Identified())[0]):
            state, _ = run(start, *[NetworkFailure("x")] * 6)
            after = after_acceptance(state)
            self.assertEqual((after.state, after.reason, after.failures), ("backing_off", "network", 0))
            self.assertEqual(run(after, NetworkFailure("x"))[1], [60])

    def test_shows_that_the_webhook_is_ours(self) -> None:
        state, _ = run(LISTENING, Elsewhere("other.example"), Elsewhere(None))
        self.assertEqual(after_acceptance(state), LISTENING)

    def test_resumes_nothing_else(self) -> None:
        state, _ = run(LISTENING, OtherBot(42, 43))
        self.assertEqual(after_acceptance(state), state)
        self.assertEqual(after_acceptance(LISTENING), LISTENING)
        self.assertEqual(after_acceptance(KeeperState()), KeeperState())

    def test_a_trouble_after_undelivered_updates_is_its_own(self) -> None:
        state, _ = run(LISTENING, Undelivered("x"), NetworkFailure("x"))
        self.assertEqual(after_acceptance(state).state, "backing_off")


class JudgementTests(SynchronousTestCase):
    """Complaints are compared with one another only: Telegram's clock need not be ours."""

    def judge(
        self, before: KeeperState, at: int | None, waiting: int = 1, accepted: bool = False, url: str = URL
    ) -> Event:
        info = WebhookInfo("hooks.example", waiting, url, at, "Connection refused")
        return judged(info, URL, before, accepted=accepted)

    def test_ours(self) -> None:
        self.assertEqual(self.judge(LISTENING, None), Delivering(0))

    def test_others(self) -> None:
        none = WebhookInfo(None)
        self.assertEqual(judged(none, URL, LISTENING, accepted=False), Elsewhere(None))
        # Whoever calls with our secret knows our webhook.
        self.assertEqual(judged(none, URL, LISTENING, accepted=True), Delivering(0))
        self.assertEqual(self.judge(LISTENING, None, url=URL + "/x"), Elsewhere("hooks.example"))

    def test_the_first_look_forgives_what_was_before(self) -> None:
        first = evolve(LISTENING, complaint_at=None)
        self.assertEqual(self.judge(first, 500), Delivering(500))
        # It comes right after ours was set.
        self.assertEqual(judged(WebhookInfo(None), URL, first, accepted=False), Delivering(0))

    def test_a_younger_complaint(self) -> None:
        before = evolve(LISTENING, complaint_at=500)
        self.assertEqual(self.judge(before, 501), Undelivered("Connection refused"))
        self.assertEqual(self.judge(before, 500), Delivering(500))

    def test_a_complaint_lasts_until_an_update_has_come(self) -> None:
        before = evolve(LISTENING, complaint_at=500)
        event = self.judge(before, 501)
        state, _ = run(before, event)
        self.assertEqual(self.judge(state, 501), event)
        self.assertEqual(self.judge(state, 501, accepted=True), Delivering(501))

    def test_an_update_that_was_accepted_since(self) -> None:
        self.assertEqual(self.judge(LISTENING, 501, accepted=True), Delivering(501))

    def test_nothing_waits(self) -> None:
        self.assertEqual(self.judge(LISTENING, 501, waiting=0), Delivering(501))

    def test_telegram_need_not_say_why(self) -> None:
        info = WebhookInfo("hooks.example", 1, URL, 501)
        self.assertEqual(judged(info, URL, LISTENING, accepted=False), Undelivered("it does not say why"))


class SameUrlTests(SynchronousTestCase):
    def test_spellings(self) -> None:
        for one, other in (
            ("https://h.example/x", "HTTPS://H.Example:443/x"),
            ("http://h:80", "http://h/"),
            ("https://h/x?a=b", "https://h/x?a=b"),
        ):
            self.assertTrue(same_url(one, other), one)

    def test_others(self) -> None:
        for other in (
            "",
            "https://h/X",
            "https://h/x?a",
            "https://h:8443/x",
            "http://h/x",
            "https://[::1",
            "1",
        ):
            self.assertFalse(same_url("https://h/x", other), other)


class PropertyTests(SynchronousTestCase):
    @given(
        st.lists(st.one_of(st.sampled_from(EVENTS), st.none()), max_size=40),
        st.floats(0, 1, exclude_max=True),
    )
    def test_invariants(self, events: list[Event | None], jitter: float) -> None:
        """None: an update is accepted."""
        state = KeeperState()
        for event in events:
            if event is None:
                state = after_acceptance(state)
                continue
            was_set = state.is_set
            state, rest = after_step(event, state, jitter)
            self.assertTrue(0 <= rest <= 86_400)
            self.assertTrue(state.is_set or not was_set)
            if state.state in ("starting", "listening"):
                self.assertEqual((state.reason, state.failures, state.undelivered), (None, 0, False))
            else:
                self.assertTrue(state.reason is not None)
            if state.undelivered:
                self.assertEqual((state.state, state.reason), ("backing_off", "network"))
