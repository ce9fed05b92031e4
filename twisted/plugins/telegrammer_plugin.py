"""The twistd plugin; it imports nothing of ours, since every twistd start on the machine reads it."""

from twisted.application.service import ServiceMaker

telegrammer = ServiceMaker(
    "Telegrammer", "telegrammer.tap", "Gateway between a Telegram bot and programs.", "telegrammer"
)
