"""The tests; see the README for how to run them."""

from hypothesis import settings

# How long one example takes is the machine's affair, and no test's result.
settings.register_profile("telegrammer", deadline=None)
settings.load_profile("telegrammer")
