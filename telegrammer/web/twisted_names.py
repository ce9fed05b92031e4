"""The private names of Twisted that ``web.admission`` relies on: a start is refused where one is missing."""

from __future__ import annotations

from collections.abc import Iterator

from twisted.internet.abstract import FileDescriptor
from twisted.web import http
from twisted.web.http import HTTPChannel

from telegrammer.core.problems import StartRefused
from twisted import __version__ as twisted_version

_DECODER: type | None = getattr(http, "_ChunkedTransferDecoder", None)


def missing_names(
    channel: type = HTTPChannel, descriptor: type = FileDescriptor, decoder: type | None = _DECODER
) -> Iterator[str]:
    """The private names this module relies on that these classes do not have."""
    methods = {
        "__init__": ("requests", "_dataBuffer", "_handlingRequest"),
        "connectionMade": ("_networkProducer", "setTimeout", "timeOut"),
        "lineReceived": ("_command", "_path", "_version", "headerReceived", "allHeadersReceived"),
        "headerReceived": ("_maybeChooseTransferDecoder", "_respondToBadRequestAndDisconnect"),
        "allHeadersReceived": ("checkPersistence", "gotLength", "length"),
        "allContentReceived": ("_transferDecoder", "requestReceived"),
        "requestDone": ("_dataBuffer", "loseConnection", "setLineMode"),
        "rawDataReceived": ("_dataBuffer", "_respondToBadRequestAndDisconnect"),
        "lineLengthExceeded": (),
        "clearLineBuffer": ("_buffer",),
        "pauseProducing": ("_handlingRequest",),
        "resumeProducing": ("_handlingRequest",),
        "_send100Continue": (),
    }
    for method, names in methods.items():
        code = getattr(getattr(channel, method, None), "__code__", None)
        if code is None:
            yield f"{channel.__name__}.{method}"
        else:
            yield from (
                f"{name} in {channel.__name__}.{method}" for name in names if name not in code.co_names
            )
    code = getattr(getattr(descriptor, "_isSendBufferFull", None), "__code__", None)
    if code is None or not {"dataBuffer", "_tempDataLen"} <= set(code.co_names):
        yield f"{descriptor.__name__}._isSendBufferFull"
    # Without it no trailer would be looked at, and none refused.
    code = getattr(getattr(decoder, "_dataReceived_TRAILER", None), "__code__", None)
    if code is None or "_trailerHeaders" not in code.co_names:
        yield "_ChunkedTransferDecoder._trailerHeaders"


def check(
    channel: type = HTTPChannel, descriptor: type = FileDescriptor, decoder: type | None = _DECODER
) -> None:
    """
    Look for every name.

    :raises StartRefused: some are missing; the message has the version and the names.
    """
    missing = ", ".join(missing_names(channel, descriptor, decoder))
    if missing:
        raise StartRefused(f"Twisted {twisted_version} cannot be used: it lacks {missing}")
