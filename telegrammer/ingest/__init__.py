"""How updates come in (contract 5)."""
