"""The state: SQLite through adbapi, one writer, SQL as functions of a cursor (contract 4)."""
