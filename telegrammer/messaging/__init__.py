"""Messages to people: a durable outbox, e-mail, files; a library of its own (contract 7)."""
