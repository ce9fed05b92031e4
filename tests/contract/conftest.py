"""Threads take turns often in these tests."""

from tests.support.switching import eager_switching

__all__ = ["eager_switching"]
