"""Component states in, the ``/health`` document out (contract 2.3)."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

IngestionState = Literal["starting", "polling", "backing_off", "suspended", "stopped"]
Reason = Literal[
    "network",
    "upstream",
    "rate_limited",
    "credentials",
    "wrong_bot",
    "conflict_webhook",
    "conflict_poller",
    "capacity",
    "malformed_update",
    "storage",
]


@frozen
class IngestionStatus:
    """How polling does: what it last *achieved*, never that it is alive."""

    state: IngestionState = "starting"
    reason: Reason | None = None
    consecutive_failures: int = 0
    last_success_at: int | None = None
    """Unix seconds of the last validated batch."""
    quiet_seconds: float = 0.0
    """Monotonic seconds since then, or since the start."""
    mode: Literal["poll"] = "poll"


@frozen
class DeliveryStatus:
    """How the callback workers do; ``backing_off``: their transactions fail, nothing is claimed."""

    state: Literal["ok", "backing_off", "stopped"] = "ok"
    workers: int = 0
    busy: int = 0
