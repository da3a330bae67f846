use super::super::pythonic::FORMAT;
use super::{check_all, check_text};

#[test]
fn calls() {
    check_all(
        &FORMAT,
        &[
            (
                "[look(place=\"Kö'ln\", days=-2, exact=True), ping()]",
                "",
                &[
                    (
                        "look",
                        "{\"place\": \"Kö'ln\", \"days\": -2, \"exact\": true}",
                    ),
                    ("ping", "{}"),
                ],
            ),
            (
                "<|python_start|>[box.open(a=[1, 2.5, (None,)], b={'x': {\"y\": False}, 3: 'z'}, c=[], d={})]<|python_end|>",
                "",
                &[(
                    "box.open",
                    "{\"a\": [1, 2.5, [null]], \"b\": {\"x\": {\"y\": false}, \"3\": \"z\"}, \"c\": [], \"d\": {}}",
                )],
            ),
            // Escapes of Python.
            (
                "[ping(a='it\\'s \"x\"\\n\\x41\\u00e9\\d<|python_end|>')]",
                "",
                &[(
                    "ping",
                    "{\"a\": \"it's \\\"x\\\"\\nAé\\\\d<|python_end|>\"}",
                )],
            ),
            ("\n[ ping ( ) ]", "\n[ ping ( ) ]", &[]),
            ("[ping(a=word)] So", "So", &[("ping", "{\"a\": \"word\"}")]),
            // A character as two escapes, and a half of one.
            (
                "[ping(a='\\ud83d\\ude00 \\ud83d!')]",
                "",
                &[("ping", "{\"a\": \"😀 \u{fffd}!\"}")],
            ),
            // An argument without a name behind one that has a name.
            ("[ping(a=1, b)] So", "b)] So", &[("ping", "{\"a\": 1")]),
            // The output ends early.
            ("[look(place=\"a", "", &[("look", "{\"place\": \"a")]),
        ],
    );
}

#[test]
fn text() {
    check_text(
        &FORMAT,
        &[
            "[1, 2, 3]",
            "[see](http://a)",
            "[look, ping]",
            "See [look(place=1)]",
            "[nobody(a=1)]",
            "[look",
            "[look(\"Köln\")]",
            "[look(5)]",
            "[look( x",
            "<|python_start|>print(1)",
        ],
    );
}
