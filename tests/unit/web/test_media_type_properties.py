"""Content-Type, beside a second reader of another make."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase
from werkzeug.http import parse_options_header

from telegrammer.web.screen import is_json

TOKEN = "!#$%&'*+-.^_`|~09azAZ"
names = st.text(alphabet=TOKEN, min_size=1, max_size=6).filter(lambda name: name.lower() != "charset")
quoted = st.text(alphabet=[chr(byte) for byte in range(0x20, 0x7F) if chr(byte) not in '"\\'], max_size=8)
parameters = st.tuples(
    names, st.text(alphabet=TOKEN, min_size=1, max_size=6) | quoted.map(lambda text: f'"{text}"')
).map("=".join)
charsets = st.sampled_from(["charset=utf-8", "Charset=UTF-8", 'charset="utf-8"', 'CHARSET="Utf-8"'])
gaps = st.sampled_from([";", "; ", " ;", " ; ", ";\t"])
pieces = st.sampled_from(
    [
        *(
            b"application/json",
            b"Application/JSON",
            b"text/html",
            b";",
            b" ",
            b"\t",
            b"charset=",
            b"utf-8",
            b"latin-1",
        ),
        *(
            b'"',
            b'"utf-8"',
            b"charset*=utf-8''x",
            b"=",
            b",",
            b"\\",
            b"/",
            b"\x00",
            b"\xff",
            b"x=y",
            b"charset*0=utf",
        ),
    ]
)


class MediaTypePropertyTests(SynchronousTestCase):
    @given(st.lists(parameters, max_size=3), charsets | st.none(), st.data())
    def test_parameters_do_not_matter_but_the_charset(
        self, others: list[str], charset: str | None, data: st.DataObject
    ) -> None:
        every = data.draw(st.permutations(others + ([] if charset is None else [charset])))
        value = "application/json" + "".join(data.draw(gaps) + each for each in every)
        self.assertTrue(is_json([value.encode()]), value)
        self.assertFalse(is_json([(value + ";charset=utf-16").encode()]), value)
        self.assertFalse(is_json([value.encode(), value.encode()]))

    @given(st.lists(pieces, max_size=8).map(b"".join) | st.binary(max_size=60))
    def test_what_is_taken_another_reader_takes_for_json(self, value: bytes) -> None:
        if not is_json([value]):
            return
        kind, options = parse_options_header(value.decode("latin-1"))
        self.assertEqual(kind.strip().lower(), "application/json")
        self.assertEqual(options.get("charset", "utf-8").lower(), "utf-8", value)
