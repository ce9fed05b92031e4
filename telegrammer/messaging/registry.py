"""
The providers of a program, by their names: declared, or bound at run time (contract 7.1).

E-mail and files are *native*: a declaration says all that makes them, so they are serialised and restored.
An outbox is *bound*: a handle that the program opened; a serialisation shows its name and kind, and whoever
restores it binds it again.  Nothing of this opens a file or a connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import attrs
from attrs import field, frozen
from twisted.internet.defer import Deferred

from telegrammer.core.messages import Credentials, Message
from telegrammer.core.problems import DirectiveRefused, RegistryRefused, UnknownProvider
from telegrammer.messaging.directives import provider_name
from telegrammer.messaging.email import EmailConfig, EmailProvider
from telegrammer.messaging.file import FileConfig, FileProvider


class Provider(Protocol):
    """Whatever takes a message: an outbox keeps it, the others carry it to its recipients."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    def send(self, message: Message, *, credentials: Credentials | None = None) -> Deferred[Any]: ...


class Native(Provider, Protocol):
    """A provider that its config says all of."""

    @property
    def config(self) -> Any: ...


@frozen
class Kind:
    """How a native provider of a kind is made: its config's class, and what makes a provider of one."""

    config: Any
    """An attrs class with ``from_directives``."""
    provider: Callable[[Any], Native]


def _directives(given: Iterable[str]) -> tuple[str, ...]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise DirectiveRefused("", "directives are a list of texts, not one text")
    return tuple(given)


@frozen
class Declaration:
    """A native provider in its declared form: ``Declaration("email", ["name mail", …])``."""

    kind: str
    directives: tuple[str, ...] = field(converter=_directives)


def _declarations(given: Iterable[Declaration]) -> tuple[Declaration, ...]:
    declarations = tuple(given)
    if not all(isinstance(each, Declaration) for each in declarations):
        raise RegistryRefused("only a Declaration declares something")
    return declarations


class Registry:
    """
    Publishes providers, all or none.

    No copy or serialisation of it has what is bound; none has credentials.

    :param declarations: of native providers.  Where there are any they are the authority.
    :param providers: native providers made by their typed constructors; they count where nothing is declared.
    """

    declarations: Sequence[Declaration]
    """May be changed at any time, as may ``providers``; ``validate`` makes it count."""
    providers: Sequence[Native]

    def __init__(
        self,
        declarations: Iterable[Declaration] = (),
        providers: Iterable[Native] = (),
        *,
        kinds: Mapping[str, Kind] | None = None,
    ) -> None:
        self.declarations = _declarations(declarations)
        self.providers = tuple(providers)
        self._kinds = native_kinds() if kinds is None else kinds
        self._bound: dict[str, Provider] = {}
        self._published: dict[str, Provider] = {}

    def __repr__(self) -> str:
        return f"Registry({', '.join(self._published)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # No class method: Twisted has its own way with pickled ones (twisted.persisted.styles).
        return _restored, (self.as_dict(),)

    def add_provider(self, name: str, provider: Provider) -> None:
        """
        Bind a provider that exists only at run time; ``validate`` publishes it.

        :raises RegistryRefused: the name is malformed, a built-in kind's, or bound already.
        """
        _check_name(name)
        if name in self._bound:
            raise RegistryRefused(f"{name} is bound already", [name])
        if not isinstance(getattr(provider, "kind", None), str) or not callable(
            getattr(provider, "send", None)
        ):
            raise RegistryRefused(f"what is bound to {name} is no provider", [name])
        self._bound[name] = provider

    def remove_provider(self, name: str) -> None:
        """
        Give a binding up; what is published stays until the next ``validate``.

        :raises UnknownProvider: nothing is bound to the name.
        """
        if self._bound.pop(name, None) is None:
            raise UnknownProvider("nothing is bound to this name", [name])

    def validate(self) -> None:
        """
        Check everything, then publish it; nothing is written or opened, and bindings stay.

        :raises DirectiveRefused: a declaration is malformed.
        :raises RegistryRefused: a name occurs twice, or is a built-in kind's, or a kind is none.

        What was published before stays when it raises.
        """
        if self.declarations:
            natives = [self._parsed(*each) for each in enumerate(_declarations(self.declarations), 1)]
        else:
            natives = [self._checked(provider) for provider in self.providers]
        published: dict[str, Provider] = {}
        twice: list[str] = []
        for name, provider in [*((each.name, each) for each in natives), *self._bound.items()]:
            if name in published:
                twice.append(name)
            published[name] = provider
        if twice:
            raise RegistryRefused(f"more than one provider is called {', '.join(twice)}", twice)
        self._published = published

    def provider(self, name: str) -> Provider:
        """
        The published provider of this name.

        :raises UnknownProvider: there is none.
        """
        self.require([name])
        return self._published[name]

    @property
    def names(self) -> tuple[str, ...]:
        """Of all that is published."""
        return tuple(self._published)

    def require(self, names: Iterable[str]) -> None:
        """
        See that providers of all these names are published; nothing is opened.

        :raises UnknownProvider: some are not; ``names`` has all of those.
        """
        missing = [name for name in dict.fromkeys(names) if name not in self._published]
        if missing:
            raise UnknownProvider(f"no provider is called {', '.join(map(repr, missing))}", missing)

    def as_dict(self) -> dict[str, Any]:
        """
        What restores it, as JSON has it: the declarations, or else the typed providers' configs.

        Of bound providers only name and kind are shown.  There are no credentials in it.
        """
        declarations = [
            {"kind": each.kind, "directives": list(each.directives)} for each in self.declarations
        ]
        typed = () if declarations else self.providers
        return {
            "declarations": declarations,
            "providers": [{"kind": each.kind, "config": _plain(each.config)} for each in typed],
            "bound": [{"name": name, "kind": each.kind} for name, each in self._bound.items()],
        }

    def to_json(self) -> str:
        """``as_dict``, as a JSON text."""
        return json.dumps(self.as_dict(), ensure_ascii=False)

    @classmethod
    def from_dict(cls, members: Mapping[str, Any], *, kinds: Mapping[str, Kind] | None = None) -> Self:
        """
        A registry of what ``as_dict`` gave, without bindings: bind those again, then ``validate``.

        :raises RegistryRefused: it is not of that form.
        :raises DirectiveRefused: a config in it breaks a rule.
        """
        kinds = native_kinds() if kinds is None else kinds
        try:
            if not set(members) <= {"declarations", "providers", "bound"}:
                raise TypeError
            declarations = [_declaration(**each) for each in members.get("declarations", ())]
            providers = [_native(kinds, **each) for each in members.get("providers", ())]
            for each in members.get("bound", ()):
                if set(each) != {"name", "kind"}:
                    raise TypeError
        except (TypeError, KeyError, AttributeError):
            raise RegistryRefused("this is no registry's serialisation") from None
        return cls(declarations, providers, kinds=kinds)

    @classmethod
    def from_json(cls, text: str, *, kinds: Mapping[str, Kind] | None = None) -> Self:
        """
        As ``from_dict``.

        :raises RegistryRefused: it is not of that form.
        :raises DirectiveRefused: a config in it breaks a rule.
        """
        try:
            members = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            raise RegistryRefused("this is no registry's serialisation") from None
        return cls.from_dict(members, kinds=kinds)

    def _parsed(self, number: int, declaration: Declaration) -> Native:
        if declaration.kind == "sqlite":
            raise RegistryRefused(f"declaration {number}: an outbox is opened, and bound", ["sqlite"])
        kind = self._kinds.get(declaration.kind) if isinstance(declaration.kind, str) else None
        if kind is None:
            raise RegistryRefused(f"declaration {number}: no such kind", [])
        try:
            return self._checked(kind.provider(kind.config.from_directives(declaration.directives)))
        except DirectiveRefused as refused:
            raise DirectiveRefused(
                refused.directive, f"declaration {number} ({declaration.kind}): {refused}"
            ) from None

    def _checked(self, provider: Native) -> Native:
        kind = self._kinds.get(getattr(provider, "kind", ""))
        if kind is None or not isinstance(getattr(provider, "config", None), kind.config):
            raise RegistryRefused("only native providers are given; others are bound")
        _check_name(provider.name)
        return provider


def _restored(members: Mapping[str, Any]) -> Registry:
    return Registry.from_dict(members)


def native_kinds() -> dict[str, Kind]:
    """E-mail and files."""
    return {
        EmailConfig.kind: Kind(EmailConfig, EmailProvider),
        FileConfig.kind: Kind(FileConfig, FileProvider),
    }


def _check_name(name: str) -> None:
    try:
        provider_name(name)
    except ValueError as error:
        raise RegistryRefused(f"a provider's name {error}", [name] if isinstance(name, str) else []) from None


def _plain(config: Any) -> dict[str, Any]:
    def plain(_: Any, __: Any, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value

    return attrs.asdict(config, value_serializer=plain)


def _declaration(kind: Any, directives: Any) -> Declaration:
    if not isinstance(kind, str) or not isinstance(directives, list):
        raise TypeError
    if not all(isinstance(each, str) for each in directives):
        raise TypeError
    return Declaration(kind, directives)


def _native(kinds: Mapping[str, Kind], kind: Any, config: Any) -> Native:
    return kinds[kind].provider(kinds[kind].config(**config))
