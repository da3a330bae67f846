"""Tests of near_ties.py: python -m unittest test_near_ties.py, in this folder."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import near_ties


def answer(tokens: list, gaps: list) -> dict:
    """An answer whose second token is always `second`."""
    top = [[[token, -0.1], ["second", -0.1 - gap]] for token, gap in zip(tokens, gaps)]
    return {"prompt": "p", "text": "".join(tokens), "tokens": tokens, "logprobs": [-0.1] * len(tokens),
            "top": top, "usage": {}}


def compared(plain: list, other: list) -> str:
    with tempfile.TemporaryDirectory() as folder:
        names = [str(pathlib.Path(folder) / name) for name in ("plain.json", "other.json")]
        options = {"max_tokens": 4, "concurrency": 1, "body": {}}
        for name, answers in zip(names, (plain, other)):
            run = {"options": options, "seconds": 1, "answers": answers}
            pathlib.Path(name).write_text(json.dumps(run), encoding="utf-8")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            near_ties.compare(*names, 12)
        return said.getvalue()


class Compared(unittest.TestCase):
    def test_the_same_answers_do_not_differ(self) -> None:
        same = [answer(["a", "b"], [3, 4])]
        self.assertIn("no answer differs: 1 are the same", compared(same, same))

    def test_a_near_tie_is_told_with_its_gap(self) -> None:
        said = compared([answer(["a", "b", "c"], [3, 0.001, 5])], [answer(["a", "second", "x"], [3, 0.002, 5])])
        self.assertIn("answers that differ: 1 of 1; the other token is the plain run's second in 1 of 1", said)
        self.assertIn("position   1: gap 0.001000 (other run 0.002000)", said)
        self.assertIn("1 of 3 positions", said)

    def test_what_no_tie_explains_stands_out(self) -> None:
        said = compared([answer(["a", "b"], [3, 4])], [answer(["a", "c"], [3, 4])])
        self.assertIn("NOT ITS SECOND", said)

    def test_an_answer_that_ends_earlier_differs_there(self) -> None:
        said = compared([answer(["a", "b"], [3, 4])], [answer(["a"], [3])])
        self.assertIn("position   1: gap 4.000000 (other run none), 'b' -> None, NOT ITS SECOND", said)

    def test_a_failed_answer_is_left_out(self) -> None:
        said = compared([{"prompt": "p", "error": "none"}] * 2, [answer(["a"], [3])] * 2)
        self.assertIn("no answer differs: 0 are the same", said)

    def test_runs_that_were_asked_otherwise_are_refused(self) -> None:
        with self.assertRaises(SystemExit):
            compared([answer(["a"], [3])], [answer(["a"], [3]) | {"prompt": "q"}])


class Prompts(unittest.TestCase):
    def test_a_line_is_text_a_string_or_ids(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "prompts"
            path.write_text('as it is\n\n"two\\nlines"\n[1, 2]\n', encoding="utf-8")
            self.assertEqual(near_ties.read_prompts(str(path)), ["as it is", "two\nlines", [1, 2]])


if __name__ == "__main__":
    unittest.main()
