"""Rules without I/O: pure functions and frozen values.  Nothing here reads a clock or opens anything."""
