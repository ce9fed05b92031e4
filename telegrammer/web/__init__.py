"""The HTTP API (contract 2)."""
