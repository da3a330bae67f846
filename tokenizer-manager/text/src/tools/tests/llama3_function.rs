use super::super::llama3_function::FORMAT;
use super::{check_all, check_text};

#[test]
fn calls_between_tags() {
    check_all(
        &FORMAT,
        &[
            (
                "Let me see.\n<function=look>{\"place\": \"a </function> b\"}</function>",
                "Let me see.",
                &[("look", "{\"place\": \"a </function> b\"}")],
            ),
            (
                "<function=ping>{}</function><function=box.open>{\"a\": [1]}</function>\nDone.",
                "Done.",
                &[("ping", "{}"), ("box.open", "{\"a\": [1]}")],
            ),
            // No arguments, and no closing tag.
            ("<function=ping></function>", "", &[("ping", "{}")]),
            ("<function=ping>{\"a\": 1}", "", &[("ping", "{\"a\": 1}")]),
        ],
    );
    check_text(
        &FORMAT,
        &[
            "Write <function=name>{} then.",
            "<function=look",
            "<function=lo\nok>{}",
            "a </function> b",
        ],
    );
}
