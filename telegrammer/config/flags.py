"""
Flags as typed: which are settings, which are unknown.

Both command lines (argparse's and twistd's) abbreviate or echo what they do not know; ``--token SECRET``
must be neither taken for ``--token-file`` nor repeated.  So unknown flags are taken out first, by name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


def is_flag(argument: str) -> bool:
    """Whether an argument is a flag, not a value (``-`` and ``-5`` are values)."""
    return len(argument) > 1 and argument[0] == "-" and not argument[1:].isdigit()


def separate_unknown(
    arguments: Sequence[str], valued: Collection[str], switches: Collection[str]
) -> tuple[list[str], list[str]]:
    """
    The arguments without unknown flags, and the unknown flags' names.

    ``valued`` and ``switches`` name the known flags, dashes included.  What follows an unknown flag and is
    no flag goes with it, for it may be a secret; ``--`` ends the flags.
    """
    kept: list[str] = []
    unknown: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return kept + [argument, *rest], unknown
        name = argument.partition("=")[0]
        if not is_flag(argument) or argument in switches or (name in valued and name != argument):
            kept.append(argument)
        elif name in valued:
            kept.append(argument)
            if rest:
                kept.append(rest.pop(0))
        else:
            # A short flag may have its value glued to it.
            unknown.append(name if name.startswith("--") else name[:2])
            if name == argument and rest and not is_flag(rest[0]):
                rest.pop(0)
    return kept, unknown
