"""The guided tour: a stand-in Bot API, the real daemon, a callback receiver (contract 1.1)."""
