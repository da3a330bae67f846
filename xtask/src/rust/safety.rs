//! Requires a reason in front of every unsafe block and unsafe implementation.

use proc_macro2::Span;
use syn::visit::{self, Visit};

use crate::Finding;

const WORD: &str = "SAFETY:";
/// Maximum number of lines of the same statement between the reason and `unsafe`.
const STATEMENT: usize = 4;

pub(super) fn check(path: &str, text: &str, file: &syn::File) -> Vec<Finding> {
    let mut places = Places::default();
    places.visit_file(file);
    let lines: Vec<&str> = text.lines().collect();
    let bare = places
        .0
        .into_iter()
        .filter(|&line| !has_reason(&lines, line));
    bare.map(|line| Finding::new(path, line, format!("no `// {WORD}` above this unsafe code")))
        .collect()
}

/// Line numbers, from 1, of unsafe blocks and implementations.
#[derive(Default)]
struct Places(Vec<usize>);

impl Places {
    fn add(&mut self, span: Span) {
        self.0.push(span.start().line);
    }
}

impl<'ast> Visit<'ast> for Places {
    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.add(block.unsafe_token.span);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some(token) = &item.unsafety {
            self.add(token.span);
        }
        visit::visit_item_impl(self, item);
    }
}

/// Returns true if a comment gives a reason. The comment ends at most [`STATEMENT`]
/// lines above `line` (from 1).
fn has_reason(lines: &[&str], line: usize) -> bool {
    let is_comment = |index: &usize| lines[*index].trim_start().starts_with("//");
    let above = (0..line).rev();
    let Some(end) = above.take(STATEMENT + 1).find(is_comment) else {
        return false;
    };
    (0..=end)
        .rev()
        .take_while(is_comment)
        .any(|index| lines[index].contains(WORD))
}

#[cfg(test)]
mod tests {
    use super::check;

    fn bare_lines(text: &str) -> Vec<usize> {
        let file = syn::parse_file(text).expect("Rust");
        check("a.rs", text, &file)
            .iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn finds_unsafe_code_without_a_reason() {
        assert_eq!(bare_lines("fn a() {\n    unsafe { b() }\n}\n"), [2]);
        assert_eq!(
            bare_lines("fn a() {\n    // Quick.\n    unsafe { b() }\n}\n"),
            [3]
        );
        assert_eq!(bare_lines("struct A;\nunsafe impl Send for A {}\n"), [2]);
        let far = "fn a() {\n    // SAFETY: fine.\n    b();\n    b();\n    b();\n    b();\n    b();\n    unsafe { b() }\n}\n";
        assert_eq!(bare_lines(far), [8]);
    }

    #[test]
    fn accepts_a_reason_above_the_statement() {
        for text in [
            "fn a() {\n    // SAFETY: fine.\n    unsafe { b() }\n}\n",
            "fn a() {\n    // SAFETY: it is\n    // fine.\n    let c =\n        unsafe { b() };\n}\n",
            "struct A;\n// SAFETY: no data.\nunsafe impl Send for A {}\n",
        ] {
            assert_eq!(bare_lines(text), [], "{text}");
        }
    }
}
