"""Providers by their names: all or nothing, and what of them is written down (contract 7.1)."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self
from unittest import mock

from attrs import define, frozen
from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.messages import Credentials, Message
from telegrammer.core.problems import (
    DirectiveRefused,
    MessagingError,
    RegistryRefused,
    UnknownProvider,
)
from telegrammer.messaging.directives import absolute_path, checked, parse_directives, provider_name
from telegrammer.messaging.registry import Declaration, Kind, Registry
from tests.support.outbox import Desk

MAIL = Declaration("email", ["name mail", "spool /var/mail"])
SPOOL = Declaration("email", ["name spool", "spool /var/spool"])


@frozen
class Config:
    name: str
    spool: Path

    def __attrs_post_init__(self) -> None:
        checked("spool", absolute_path, self.spool)
        object.__setattr__(self, "spool", Path(self.spool))

    @classmethod
    def from_directives(cls, directives: Iterable[str]) -> Self:
        return cls(**parse_directives(directives, {"name": provider_name, "spool": absolute_path}, {}))


@define(eq=False)
class Native:
    config: Config
    kind: str = "email"

    @property
    def name(self) -> str:
        return self.config.name

    def send(self, message: Message, *, credentials: Credentials | None = None) -> Deferred[Any]:
        return succeed(None)


KINDS = {"email": Kind(Config, Native), "file": Kind(Config, lambda config: Native(config, "file"))}


def registry(*declarations: Declaration, providers: Iterable[Native] = ()) -> Registry:
    return Registry(declarations, providers, kinds=KINDS)


def native(name: str, kind: str = "email") -> Native:
    return Native(Config(name, Path("/spool")), kind)


class RegistryTests(SynchronousTestCase):
    def refused(self, given: Registry, kind: type[MessagingError] = RegistryRefused) -> Any:
        """Nothing of it is published, and what was stays."""
        before = {name: given.provider(name) for name in given.names}
        error = self.assertRaises(kind, given.validate)
        self.assertEqual({name: given.provider(name) for name in given.names}, before)
        return error

    def test_declared(self) -> None:
        given = registry(MAIL, SPOOL)
        self.assertRaises(UnknownProvider, given.provider, "mail")
        given.validate()
        self.assertEqual(given.names, ("mail", "spool"))
        self.assertEqual((given.provider("mail").name, given.provider("mail").kind), ("mail", "email"))

    def test_declarations_are_parsed_afresh(self) -> None:
        given = registry(MAIL)
        given.validate()
        first = given.provider("mail")
        given.validate()
        self.assertIsNot(given.provider("mail"), first)
        given.declarations = (SPOOL,)
        self.assertEqual(given.names, ("mail",))
        given.validate()
        self.assertEqual(given.names, ("spool",))

    def test_declarations_are_the_authority(self) -> None:
        typed = native("typed")
        given = registry(MAIL, providers=[typed])
        given.validate()
        self.assertEqual(given.names, ("mail",))
        given.declarations = ()
        given.validate()
        self.assertIs(given.provider("typed"), typed)

    def test_bindings_survive(self) -> None:
        bound = native("whatever", "sqlite")
        given = registry(MAIL)
        given.add_provider("alerts", bound)
        self.assertEqual(given.names, ())
        for _ in range(2):
            given.validate()
            self.assertIs(given.provider("alerts"), bound)
        given.remove_provider("alerts")
        self.assertIs(given.provider("alerts"), bound)
        given.validate()
        self.assertRaises(UnknownProvider, given.provider, "alerts")
        self.assertRaises(UnknownProvider, given.remove_provider, "alerts")

    def test_a_name_twice(self) -> None:
        given = registry(MAIL)
        given.validate()
        given.declarations = (SPOOL, MAIL, MAIL)
        self.assertEqual(self.refused(given).names, ("mail",))
        given.declarations = (MAIL, SPOOL)
        given.add_provider("spool", native("spool"))
        self.assertEqual(self.refused(given).names, ("spool",))
        self.assertEqual(self.refused(registry(providers=[native("a"), native("a", "file")])).names, ("a",))
        self.assertRaises(RegistryRefused, given.add_provider, "spool", native("spool"))

    def test_reserved_names(self) -> None:
        given = registry()
        for name in ("email", "file", "sqlite", "SQLite", "", "a b", None):
            self.assertRaises(RegistryRefused, given.add_provider, name, native("a"))
        self.assertEqual(self.refused(registry(providers=[native("file")])).names, ("file",))
        error = self.refused(registry(MAIL, Declaration("file", ["name file", "spool /a"])), DirectiveRefused)
        self.assertEqual(error.directive, "name")
        self.assertIn("declaration 2 (file): name ", str(error))

    def test_what_is_no_provider(self) -> None:
        given = registry()
        self.assertRaises(RegistryRefused, given.add_provider, "a", object())
        self.assertRaises(RegistryRefused, given.add_provider, "a", None)
        for wrong in (native("a", "sqlite"), mock.Mock(kind="email", config=7), object()):
            self.refused(registry(providers=[wrong]))  # type: ignore[list-item]

    def test_malformed_declarations(self) -> None:
        self.assertEqual(
            self.refused(registry(Declaration("email", ["name a"])), DirectiveRefused).directive, "spool"
        )
        self.assertRaises(DirectiveRefused, Declaration, "email", "name a")
        self.refused(registry(Declaration("pigeon", ["name a"])))
        self.assertIn("bound", str(self.refused(registry(Declaration("sqlite", ["name a", "path /a"])))))

    def test_require(self) -> None:
        given = registry(MAIL)
        given.validate()
        given.require([])
        given.require(["mail"])
        error = self.assertRaises(UnknownProvider, given.require, ["x", "mail", "y", "x"])
        self.assertEqual(error.names, ("x", "y"))

    def test_no_side_effects(self) -> None:
        with (
            mock.patch("builtins.open", side_effect=AssertionError),
            mock.patch.object(os, "open", side_effect=AssertionError),
            mock.patch("socket.socket", side_effect=AssertionError),
        ):
            given = registry(MAIL)
            given.validate()
            given.require(["mail"])
        self.assertFalse(Path("/var/mail/mail").exists())


class SerialisationTests(SynchronousTestCase):
    def test_declarations_and_restoring(self) -> None:
        desk = Desk(self)
        outbox = desk.open()
        given = registry(MAIL, providers=[native("typed")])
        given.add_provider("alerts", outbox)
        given.validate()
        text = given.to_json()
        self.assertEqual(
            json.loads(text),
            {
                "declarations": [{"kind": "email", "directives": ["name mail", "spool /var/mail"]}],
                "providers": [],
                "bound": [{"name": "alerts", "kind": "sqlite"}],
            },
        )
        self.assertNotIn(str(desk.path), text + repr(given))
        again = Registry.from_json(text, kinds=KINDS)
        self.assertEqual(again.names, ())
        again.validate()
        self.assertEqual(again.names, ("mail",))
        self.assertRaises(UnknownProvider, again.require, ["alerts"])
        again.add_provider("alerts", outbox)
        again.validate()
        self.assertEqual(again.to_json(), text)

    def test_copies(self) -> None:
        outbox = Desk(self).open()
        given = Registry([Declaration("file", ["name spool", "path /spool", "from a@example.org"])])
        given.add_provider("alerts", outbox)
        given.validate()
        self.assertEqual(repr(given), "Registry(spool, alerts)")
        for again in (pickle.loads(pickle.dumps(given)), copy.copy(given), copy.deepcopy(given)):
            self.assertEqual(again.as_dict()["bound"], [])
            self.assertEqual(again.as_dict()["declarations"], given.as_dict()["declarations"])
            again.validate()
            self.assertEqual(again.names, ("spool",))

    def test_typed_providers(self) -> None:
        given = registry(providers=[native("a"), native("b", "file")])
        again = Registry.from_dict(given.as_dict(), kinds=KINDS)
        self.assertEqual(again.as_dict(), given.as_dict())
        again.validate()
        self.assertEqual(again.names, ("a", "b"))
        self.assertEqual(again.provider("b").kind, "file")

    def test_what_is_no_serialisation(self) -> None:
        declaration = {"kind": "email", "directives": ["name a"]}
        wrongs: tuple[Any, ...] = (
            None,
            7,
            [],
            "x",
            {"else": []},
            {"declarations": 7},
            {"declarations": [7]},
            {"declarations": [{"kind": "email"}]},
            {"declarations": [{"kind": 7, "directives": []}]},
            {"declarations": [{"kind": "email", "directives": "name a"}]},
            {"declarations": [{"kind": "email", "directives": [7]}]},
            {"declarations": [declaration | {"password": "x"}]},
            {"providers": [{"kind": "pigeon", "config": {}}]},
            {"providers": [{"kind": "email", "config": {"name": "a"}}]},
            {"providers": [{"kind": "email", "config": 7}]},
            {"providers": [{"kind": [], "config": {}}]},
            {"bound": [{"name": "a"}]},
            {"bound": [7]},
        )
        for wrong in wrongs:
            self.assertRaises(RegistryRefused, Registry.from_dict, wrong, kinds=KINDS)
        for text in ("", "{", "[" * 100_000, None, "7"):
            self.assertRaises(RegistryRefused, Registry.from_json, text, kinds=KINDS)
        self.assertRaises(
            DirectiveRefused,
            Registry.from_dict,
            {"providers": [{"kind": "email", "config": {"name": "a", "spool": "x"}}]},
            kinds=KINDS,
        )
        self.assertEqual(Registry.from_dict({}, kinds=KINDS).as_dict()["bound"], [])

    def test_what_declares_nothing(self) -> None:
        bad: list[Any] = ["email", {"kind": "email"}]
        for each in bad:
            self.assertRaises(RegistryRefused, Registry, [each])
        kinds: list[Any] = [[], None, 5]
        for kind in kinds:
            self.assertRaises(RegistryRefused, Registry([Declaration(kind, [])], kinds=KINDS).validate)
        nothing: Any = None
        self.assertRaises(DirectiveRefused, Declaration, "email", nothing)
        self.assertRaises(DirectiveRefused, Config.from_directives, nothing)
