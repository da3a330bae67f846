use super::super::deepseek_dsml::{V4, V32};
use super::{check_all, check_text};

/// Tags say what is a text, so nothing of it is lost, whatever its schema.
#[test]
fn tags_tell_texts_from_json() {
    check_all(
        &V32,
        &[
            (
                "Sure.\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"look\">\n<｜DSML｜parameter name=\"place\" string=\"true\">\n 5 \n</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"ping\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
                "Sure.",
                &[
                    ("look", "{\"place\": \"\\n 5 \\n\", \"days\": 3}"),
                    ("ping", "{}"),
                ],
            ),
            // Against the schema: the tag counts.
            (
                "<｜DSML｜function_calls><｜DSML｜invoke name=\"look\"><｜DSML｜parameter name=\"days\" string=\"true\">3</｜DSML｜parameter><｜DSML｜parameter name=\"place\" string=\"false\">\"a\"</｜DSML｜parameter><｜DSML｜parameter name=\"note\" string=\"false\">null</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>",
                "",
                &[(
                    "look",
                    "{\"days\": \"3\", \"place\": \"a\", \"note\": null}",
                )],
            ),
            // What the tag calls JSON is none.
            (
                "<｜DSML｜function_calls><｜DSML｜invoke name=\"look\"><｜DSML｜parameter name=\"days\" string=\"false\">2026-01-15</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>",
                "",
                &[("look", "{\"days\": \"2026-01-15\"}")],
            ),
            // A tag that says nothing: the schema counts.
            (
                "<｜DSML｜function_calls><｜DSML｜invoke name=\"look\"><｜DSML｜parameter name=\"days\">4</｜DSML｜parameter><｜DSML｜parameter name=\"place\">4</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>",
                "",
                &[("look", "{\"days\": 4, \"place\": \"4\"}")],
            ),
            // A value that ends like a tag.
            (
                "<｜DSML｜function_calls><｜DSML｜invoke name=\"look\"><｜DSML｜parameter name=\"place\" string=\"true\">a 2>&1</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>",
                "",
                &[("look", "{\"place\": \"a 2>&1\"}")],
            ),
        ],
    );
    check_text(
        &V32,
        &[
            "<｜DSML｜function_calls>",
            "<｜DSML｜function_calls>none",
            "<｜DSML｜invoke name=\"nobody\">",
            "｜DSML｜ and <｜DSML",
        ],
    );
}

#[test]
fn version_4_has_another_block() {
    check_all(
        &V4,
        &[(
            "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"look\">\n<｜DSML｜parameter name=\"tags\" string=\"false\">[\"a\"]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
            "",
            &[("look", "{\"tags\": [\"a\"]}")],
        )],
    );
}
