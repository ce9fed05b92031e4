"""
Telegrammer: one Telegram bot for many programs.

The map of the house; you may look down, never up, and never into the neighbour's room::

    cli/  tap.py  demo/              doors to the street
    daemon.py                        one life of the daemon, whichever door it was started by
    app.py                           the one who knows everybody
    notice_road.py  doors.py         from settings to an outbox and what carries its messages; to listeners;
    state.py                         to a database that is open
    web/ ingest/ delivery/ notices/  rooms, one for each thing the product does
    messaging/                       a library of its own: outbox, e-mail, files
    store/  outbound/                plumbing: threads and sockets
    service.py  config/  logs.py     tools: timers, settings, log lines;
    bounded_tls.py                   and TLS that nobody can flood
    ports.py                         the sockets in the wall
    core/                            the ground: rules, no I/O

Read ``app.py``, then ``ports.py``, ``core/telegram.py`` and ``core/delivery.py``, ``ingest/poller.py``
(the shape of every worker), ``store/deliveries.py`` (the shape of every store), ``web/api.py``.
"""

__version__ = "0.1.0"
