"""The operator's notices: what is to be told goes to the outbox, and from there to him (contract 7.4)."""
