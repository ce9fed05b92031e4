"""Files are private, and belong to whom their directory belongs to (contract 1.1)."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core.problems import StartRefused
from telegrammer.store.files import (
    KnownFile,
    create_private,
    give_to_owner,
    make_private,
    make_state_directory,
    remove_directories,
)
from tests.support.directories import temporary_directory


class FileTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.directory = temporary_directory(self)

    def as_root_in_anothers_directory(self) -> list[tuple[str, int, int]]:
        """What is given away, were we root and the directory user 1234's."""
        given: list[tuple[str, int, int]] = []
        real = Path.stat

        def stat(path: Path, **options: bool) -> os.stat_result:
            found = list(real(path, **options))
            found[4:6] = [1234, 5678]
            return os.stat_result(found)

        self.patch(Path, "stat", stat)
        self.patch(os, "geteuid", lambda: 0)
        self.patch(
            os,
            "chown",
            lambda path, user, group, follow_symlinks: given.append((Path(path).name, user, group)),
        )
        return given

    def test_missing_directories_are_made_for_us_alone(self) -> None:
        make_state_directory(self.directory / "a" / "b" / "c.db")
        for name in ("a", "a/b"):
            self.assertEqual((self.directory / name).stat().st_mode & 0o777, 0o700)

    def test_what_was_made_can_be_taken_back(self) -> None:
        made = make_state_directory(self.directory / "a" / "b" / "c.db")
        self.assertEqual(made, [self.directory / "a" / "b", self.directory / "a"])
        (self.directory / "a" / "in use").touch()
        remove_directories(made)
        self.assertEqual(os.listdir(self.directory / "a"), ["in use"])

    def test_half_made_is_not_made(self) -> None:
        real = Path.mkdir

        def mkdir(path: Path, mode: int = 0o777) -> None:
            if path.name == "b":
                raise OSError(28, "No space left on device")
            real(path, mode)

        self.patch(Path, "mkdir", mkdir)
        with self.assertRaises(StartRefused) as caught:
            make_state_directory(self.directory / "a" / "b" / "c.db")
        self.assertIn("No space left on device", str(caught.exception))
        self.assertEqual(os.listdir(self.directory), [])

    def test_one_that_is_there_stays_as_it_is(self) -> None:
        self.directory.chmod(0o755)
        make_state_directory(self.directory / "c.db")
        self.assertEqual(self.directory.stat().st_mode & 0o777, 0o755)

    def test_one_that_cannot_be_made(self) -> None:
        (self.directory / "file").touch()
        for path in ("file/c.db", "file/x/c.db"):
            with self.assertRaises(StartRefused) as caught:
                make_state_directory(self.directory / path)
            self.assertIn("cannot be made", str(caught.exception))

    def test_private_whatever_the_umask(self) -> None:
        old = os.umask(0)
        self.addCleanup(os.umask, old)
        os.close(create_private(self.directory / "f"))
        self.assertEqual((self.directory / "f").stat().st_mode & 0o777, 0o600)
        os.umask(0o777)
        os.close(create_private(self.directory / "g"))
        self.assertEqual((self.directory / "g").stat().st_mode & 0o777, 0o600)

    def test_what_is_there_is_not_taken_over(self) -> None:
        (self.directory / "link").symlink_to(self.directory / "nowhere")
        self.assertRaises(FileExistsError, create_private, self.directory / "link")

    def test_a_file_that_cannot_be_given_away_is_not_left(self) -> None:
        self.as_root_in_anothers_directory()

        def chown(*_: object, **__: object) -> None:
            raise PermissionError(1, "Operation not permitted")

        self.patch(os, "chown", chown)
        self.assertRaises(PermissionError, create_private, self.directory / "f")
        self.assertEqual(os.listdir(self.directory), [])

    def test_rights_of_others_are_taken(self) -> None:
        path = self.directory / "f"
        path.touch()
        path.chmod(0o644)
        make_private(path)
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        make_private(path)
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)

    def test_root_gives_files_to_the_owner_of_the_directory(self) -> None:
        given = self.as_root_in_anothers_directory()
        os.close(create_private(self.directory / "f"))
        self.assertEqual(given, [("f", 1234, 5678)])

    def test_nobody_else_gives_anything(self) -> None:
        given = self.as_root_in_anothers_directory()
        self.patch(os, "geteuid", lambda: 1000)
        give_to_owner(self.directory / "f")
        self.assertEqual(given, [])

    def test_in_roots_own_directory_neither(self) -> None:
        given = self.as_root_in_anothers_directory()
        self.patch(Path, "stat", lambda path: os.stat_result([0o700, 1, 1, 1, 0, 0, 0, 0, 0, 0]))
        give_to_owner(self.directory / "f")
        self.assertEqual(given, [])


class KnownFileTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.path = temporary_directory(self) / "state" / "a.db"
        self.path.parent.mkdir()
        self.path.touch()
        self.known = KnownFile.of(self.path)

    def test_it_is_there(self) -> None:
        self.path.write_bytes(b"more")
        self.assertTrue(self.known.is_there())

    def test_it_is_not_the_name_that_counts(self) -> None:
        away = self.path.rename(self.path.with_name("away"))
        self.assertFalse(self.known.is_there())
        self.path.touch()
        self.assertFalse(self.known.is_there())
        away.replace(self.path)
        self.assertTrue(self.known.is_there())

    def test_its_directory_is_gone(self) -> None:
        away = self.path.parent.rename(self.path.parent.with_name("away"))
        self.assertFalse(self.known.is_there())
        away.with_name("state").touch()
        self.assertFalse(self.known.is_there())

    def test_what_cannot_be_looked_at_is_not_called_gone(self) -> None:
        def stat(path: Path) -> os.stat_result:
            raise PermissionError(13, "Permission denied")

        self.patch(Path, "stat", stat)
        self.assertTrue(self.known.is_there())
