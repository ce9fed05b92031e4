"""Reading JSON with positions: the same language as json.loads, whatever the depth."""

import json
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from telegrammer.core import jsontext
from telegrammer.core.jsontext import UNREAD, NotJson, read_array, read_object, read_value

DEEP = 100_000

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
spaces = st.text(alphabet=" \t\r\n", max_size=3)


def too_much(value: str) -> str:
    """``value`` beside an integer that ``int`` refuses: only the patient scanner gets through."""
    return "[" + "1" * 5000 + "," + value + "]"


tokens = st.sampled_from(
    [
        "[",
        "]",
        "{",
        "}",
        '{"a":',
        '{"}\\n":',
        ',"]":',
        ":",
        ",",
        "1",
        "e5",
        '"["',
        '"\\""',
        "[ ]",
        "{}",
        " ",
        "[1,",
        ",2]",
    ]
)


def calls_to_read(text: str) -> int:
    """How many calls, of Python or of C, it takes to read a value."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        read_value(text, 0)
    except NotJson:
        pass
    finally:
        sys.setprofile(before)
    return calls


class ReadValueTests(SynchronousTestCase):
    @given(json_values, spaces)
    def test_reads_what_json_reads(self, value: Any, tail: str) -> None:
        text = json.dumps(value)
        self.assertEqual(read_value("x" + text + tail, 1), (value, 1 + len(text)))

    @given(json_values, st.booleans())
    def test_the_patient_scanner_finds_the_same_end(self, value: Any, spaced: bool) -> None:
        text = too_much(json.dumps(value, indent=1 if spaced else None))
        self.assertEqual(read_value(text + ",", 0), (UNREAD, len(text)))

    @given(st.text(alphabet='[]{}",:0123456789.eE-+ \\utrfalsn\n', max_size=30))
    def test_both_scanners_refuse_the_same(self, text: str) -> None:
        def refuses(read: str) -> bool:
            try:
                _, end = read_value(read, 0)
            except NotJson:
                return True
            return end != len(read)

        try:
            json.loads("[" + text + "]", parse_constant=lambda _: 1 / 0)
            bad = False
        except (ValueError, ZeroDivisionError):
            bad = True
        self.assertEqual(refuses("[" + text + "]"), bad)
        if text.strip():
            self.assertEqual(refuses(too_much(text)), bad)

    @given(st.lists(tokens, max_size=12), st.sampled_from([1, 2, 1000]))
    def test_the_patient_scanner_knows_the_grammar(self, parts: list[str], patience: int) -> None:
        self.patch(jsontext, "_PATIENCE", patience)
        text = "".join(["0,", *parts])
        try:
            json.loads("[" + text + "]")
            valid = True
        except ValueError:
            valid = False
        long = too_much(text)
        try:
            self.assertEqual(read_value(long + "]}", 0) == (UNREAD, len(long)), valid)
        except NotJson:
            self.assertFalse(valid)

    @pytest.mark.report("E3")
    def test_depth_is_no_obstacle(self) -> None:
        for opening, closing in (("[", "]"), ('{"a":', "}"), ('[1,{"b":', "}]")):
            text = opening * DEEP + "1" + closing * DEEP
            self.assertEqual(read_value(text + "]", 0), (UNREAD, len(text)))

    def test_depth_with_items_around(self) -> None:
        for opening, closing in (
            ("[0,", ',"]",{}]'),
            ("[[ ],", " ,[]  ]"),
            ('{"}":"[","\\n":', ',"{":{ }}'),
            ('[{"[":[],"b" : ', ' ,"c":"}"}, 2]'),
            ('{"a":1,"\\"":', ',"\\"":2}'),
        ):
            text = opening * DEEP + "1" + closing * DEEP
            self.assertEqual(read_value(text + "]}", 0), (UNREAD, len(text)))

    def test_depth_beside_width(self) -> None:
        for item in ("1", "[]", "[[1]]", '"\\n"', '{"a":{"b":[1,2]}}'):
            wide = ",".join([item] * 5000)
            text = "[" * DEEP + wide + "]" * DEEP
            self.assertEqual(read_value(text + ",", 0), (UNREAD, len(text)))
            wide = ",".join(['"\\n":' + item] * 5000)
            text = '{"a":' * DEEP + "{" + wide + "}" * (DEEP + 1)
            self.assertEqual(read_value(text + ",", 0), (UNREAD, len(text)))

    def test_brackets_have_to_match(self) -> None:
        for opening, closing in (("[", "}"), ('{"a":', "]"), ('[{"a":', "]}")):
            for outer in (1, DEEP):
                text = "[" * outer + opening * DEEP + "1" + closing * DEEP + "]" * outer
                self.assertRaises(NotJson, read_value, text, 0)

    def test_width_that_goes_wrong(self) -> None:
        for wrong in ("0", "e5", '"a":1', ",", "", ",}", "}"):
            text = "[" * DEEP + ",".join(["[1]"] * 999) + wrong + "]" * (DEEP - (wrong == ""))
            self.assertRaises(NotJson, read_value, text, 0)

    def test_depth_takes_few_steps(self) -> None:
        # What a hostile body of 16 MiB costs must not add up to seconds.
        for opening, closing in (("[", "]"), ('{"a":', "}"), ('[1,{"b":', ',"c":2},3]')):
            for closings in (DEEP, 0):
                text = opening * DEEP + "1" + closing * closings
                self.assertLess(calls_to_read(text), DEEP / 2, text[:10])

    def test_width_within_depth_takes_few_steps(self) -> None:
        for item in ("1,", "[],", "[[1]],", '"\\n",', '{"a":{"b":[1,2]}},'):
            text = "[" * 5000 + item * DEEP + "1" + "]" * 5000
            self.assertLess(calls_to_read(text), DEEP / 2, item)

    def test_depth_without_an_end(self) -> None:
        for text in ("[" * DEEP, '{"a":' * DEEP, "[" * DEEP + "]" * (DEEP - 1)):
            self.assertRaises(NotJson, read_value, text, 0)

    def test_absurd_numbers(self) -> None:
        self.assertEqual(read_value("9" * 5000, 0), (UNREAD, 5000))
        self.assertEqual(read_value("-" + "9" * 5000 + " ", 0), (UNREAD, 5001))
        self.assertEqual(read_value("1e999999", 0), (float("inf"), 8))

    def test_constants_that_are_not_json(self) -> None:
        for text in ("NaN", "Infinity", "-Infinity", "[NaN]", '{"a":Infinity}', too_much("NaN")):
            self.assertRaises(NotJson, read_value, text, 0)

    def test_strings_that_are_not_json(self) -> None:
        for text in (
            '"',
            '"\\x"',
            '"\n"',
            '"\\u12"',
            too_much('"\x00"'),
            too_much("{1:2}"),
            too_much('{"a" 1}'),
        ):
            self.assertRaises(NotJson, read_value, text, 0)

    def test_an_error_tells_the_place_only(self) -> None:
        error = self.assertRaises(NotJson, read_value, "[secret]", 0)
        self.assertEqual(str(error), "not JSON at character 1")


class ReadObjectTests(SynchronousTestCase):
    def test_members_and_end(self) -> None:
        self.assertEqual(read_object('{ "a" : 1 ,"b":[2] } x', 0), ({"a": 1, "b": [2]}, 20))
        self.assertEqual(read_object("{ }", 0), ({}, 3))

    def test_the_last_of_a_name_counts(self) -> None:
        self.assertEqual(read_object('{"a":1,"\\u0061":2}', 0)[0], {"a": 2})

    def test_readers_of_members(self) -> None:
        members, end = read_object(
            '{"a":{"b":1},"c":2}', 0, {"a": lambda text, at: (at, text.index("}") + 1)}
        )
        self.assertEqual((members, end), ({"a": 5, "c": 2}, 19))

    def test_no_object(self) -> None:
        self.assertEqual(read_object("[1] ", 0), (None, 3))

    def test_not_json(self) -> None:
        for text in (
            "",
            "{",
            "{,}",
            '{"a"}',
            '{"a":}',
            '{"a":1,}',
            '{"a":1 "b":2}',
            "{a:1}",
            '{"a":1',
            '{"a":1]',
        ):
            self.assertRaises(NotJson, read_object, text, 0)


class ReadArrayTests(SynchronousTestCase):
    def test_items_and_end(self) -> None:
        self.assertEqual(read_array("[ 1 , 2]", 0, read_value), ([1, 2], 8))
        self.assertEqual(read_array("[ ]", 0, read_value), ([], 3))

    def test_no_array(self) -> None:
        self.assertEqual(read_array("{}", 0, read_value), (None, 2))

    def test_not_json(self) -> None:
        for text in ("[", "[1,]", "[1 2]", "[,1]", "[1}"):
            self.assertRaises(NotJson, read_array, text, 0, read_value)
