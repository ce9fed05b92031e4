"""How jobs go out to callbacks (contract 6)."""
