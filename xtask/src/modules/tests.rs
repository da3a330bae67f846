use super::{KNOWN, check};
use crate::Tree;

const ROOT: (&str, &str) = ("Cargo.toml", "[workspace]\nmembers = [\"a\"]\n");

/// Returns the messages about a crate `a` with these sources.
fn messages(sources: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<(&str, &str)> = [&[ROOT], sources].concat();
    check(&Tree::of(&files))
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// Checks that there is one message, and that it names these modules.
fn found(modules: &str, sources: &[(&str, &str)]) {
    let said = messages(sources);
    let expected = format!("a/src: {modules} need each other in a circle");
    assert!(
        said.len() == 1 && said[0].starts_with(&expected),
        "{said:?}"
    );
}

#[test]
fn finds_parts_that_need_each_other() {
    let lib = ("a/src/lib.rs", "mod one; mod two;");
    found(
        "`one`, `two`",
        &[
            lib,
            ("a/src/one.rs", "use crate::two::Two;"),
            ("a/src/two.rs", "use super::one;"),
        ],
    );
    found(
        "`one`, `two`",
        &[
            lib,
            ("a/src/one.rs", "fn f() -> crate::two::Two { g() }"),
            ("a/src/two.rs", "mod part;"),
            ("a/src/two/part.rs", "use super::super::one as first;"),
        ],
    );
}

#[test]
fn finds_circles_of_three_and_inside_a_module() {
    let lib = ("a/src/lib.rs", "mod m;");
    let parts = [
        ("a/src/m.rs", "mod x; mod y; mod z;"),
        ("a/src/m/x.rs", "use super::y::{self, Y as Other};"),
        ("a/src/m/y.rs", "use crate::{m::z::Z};"),
        ("a/src/m/z.rs", "use super::x::*;"),
    ];
    found("`m::x`, `m::y`, `m::z`", &[&[lib][..], &parts[..]].concat());
}

#[test]
fn follows_what_is_handed_on() {
    let (x, y) = ("use crate::Y;", "use super::m::X;");
    found(
        "`m`, `y`",
        &[
            ("a/src/lib.rs", "mod m; mod y; pub use y::Y;"),
            ("a/src/m.rs", "mod x; pub use x::X;"),
            ("a/src/m/x.rs", x),
            ("a/src/y.rs", y),
        ],
    );
    // An item of the root itself is no sibling of its user.
    let good = [
        ("a/src/lib.rs", "mod m; mod y; pub struct Y;"),
        ("a/src/m.rs", "mod x; pub use x::X;"),
        ("a/src/m/x.rs", x),
        ("a/src/y.rs", y),
    ];
    assert_eq!(messages(&good), [""; 0]);
}

#[test]
fn accepts_one_direction_parents_and_tests() {
    let good = [
        (
            "a/src/lib.rs",
            "mod one; mod two; use one::One; #[cfg(test)] mod oracle;",
        ),
        (
            "a/src/one.rs",
            "use crate::{Shared, two::Two}; use serde::one; mod part; use part::Part;",
        ),
        ("a/src/one/part.rs", "use super::One;"),
        (
            "a/src/two.rs",
            "pub struct Two; #[cfg(test)] mod tests { use crate::one::One; }",
        ),
        ("a/src/oracle.rs", "use crate::two::Two;"),
        ("a/src/main.rs", "use a::one;"),
        ("a/tests/all.rs", "use a::one;"),
    ];
    assert_eq!(messages(&good), [""; 0]);
}

/// Two modules that import each other must not make the check run for ever.
#[test]
fn ends_on_imports_that_lead_nowhere() {
    let turning = [
        ("a/src/lib.rs", "mod one; mod two;"),
        ("a/src/one.rs", "pub use crate::two::Name;"),
        ("a/src/two.rs", "pub use crate::one::Name;"),
    ];
    found("`one`, `two`", &turning);
}

#[test]
fn finds_a_listed_circle_that_is_gone() {
    let (folder, modules, _) = KNOWN[0];
    let root = format!("[workspace]\nmembers = [{folder:?}]\n");
    let tree = Tree::of(&[("Cargo.toml", root.as_str())]);
    let found: Vec<String> = check(&tree).iter().map(ToString::to_string).collect();
    let listed = KNOWN.iter().filter(|(known, ..)| *known == folder).count();
    assert_eq!(found.len(), listed, "{found:?}");
    let expected = format!(
        "xtask/src/modules.rs: lists a circle of `{}` in `{folder}`, which is none",
        modules.join("`, `")
    );
    assert!(found.contains(&expected), "{found:?}");
}
