"""Sockets to others: the Bot API exchange, the callback client, name look-ups."""
