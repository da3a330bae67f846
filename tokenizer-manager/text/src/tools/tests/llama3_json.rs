use super::super::llama3_json::FORMAT;
use super::{check_all, check_text};

#[test]
fn calls() {
    check_all(
        &FORMAT,
        &[
            (
                "{\"name\": \"look\", \"parameters\": {\"place\": \"a;b\"}}",
                "",
                &[("look", "{\"place\": \"a;b\"}")],
            ),
            (
                "<|python_tag|>{\"name\": \"look\", \"parameters\": {\"place\": \"a\"}}; {\"name\": \"ping\", \"parameters\": {}}",
                "",
                &[("look", "{\"place\": \"a\"}"), ("ping", "{}")],
            ),
            (
                "\n {\"type\": \"function\", \"name\": \"ping\", \"parameters\": {}}",
                "",
                &[("ping", "{}")],
            ),
            (
                "I look.<|python_tag|>{\"name\": \"look\", \"arguments\": {\"place\": \"a\"}}",
                "I look.",
                &[("look", "{\"place\": \"a\"}")],
            ),
            (
                "{\"name\": \"ping\", \"parameters\": {}}\nand more",
                "and more",
                &[("ping", "{}")],
            ),
        ],
    );
}

#[test]
fn text() {
    check_text(
        &FORMAT,
        &[
            "{\"answer\": {\"name\": \"look\"}}",
            "{\"name\": \"Ann\", \"parameters\": {}}",
            "{\"name\": \"look\"",
            "See {\"name\": \"look\", \"parameters\": {}}",
            "<|python_tag|>print(1)",
            "[{\"name\": \"look\", \"parameters\": {}}]",
        ],
    );
}
