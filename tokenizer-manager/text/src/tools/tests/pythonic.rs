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
            "<|python_start|>print(1)",
        ],
    );
}
