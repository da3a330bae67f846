use super::super::deepseek::{V3, V31};
use super::{check_all, check_text};

#[test]
fn fenced() {
    check_all(
        &V3,
        &[
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{\"place\": \"a ``` <｜tool▁sep｜>\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "",
                &[
                    ("look", "{\"place\": \"a ``` <｜tool▁sep｜>\"}"),
                    ("ping", "{}"),
                ],
            ),
            (
                "Wait.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{\"a\": 1}",
                "Wait.",
                &[("ping", "{\"a\": 1}")],
            ),
        ],
    );
    check_text(
        &V3,
        &[
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁begin｜>none",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            "<｜tool▁call▁begin｜>function<｜tool▁call▁end｜>",
            "｜ and <｜tool",
        ],
    );
}

#[test]
fn bare() {
    check_all(
        &V31,
        &[
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{\"place\": \"a\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "",
                &[("look", "{\"place\": \"a\"}"), ("ping", "{}")],
            ),
            (
                "<｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}\n\nHere it is.",
                "Here it is.",
                &[("ping", "{}")],
            ),
            (
                "<｜tool▁call▁begin｜>ping<｜tool▁sep｜>now<｜tool▁call▁end｜>",
                "",
                &[("ping", "now")],
            ),
            (
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>Well.",
                "Well.",
                &[("ping", "{}")],
            ),
        ],
    );
    check_text(
        &V31,
        &["<｜tool▁call▁begin｜><｜tool▁sep｜>{}", "a<｜tool▁sep｜>b"],
    );
}
