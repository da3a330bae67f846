//! Limits the length of functions.

use proc_macro2::Span;
use syn::visit::{self, Visit};

use super::is_test;
use crate::Finding;

/// Maximum number of lines of a function, from `fn` to the closing brace.
const LINES: usize = 70;
/// Maximum number of lines of a function in a file of tests.
const TEST_LINES: usize = 120;

pub(super) fn check(path: &str, file: &syn::File) -> Vec<Finding> {
    let limit = if is_test(path) { TEST_LINES } else { LINES };
    let mut functions = Functions {
        path,
        limit,
        findings: Vec::new(),
    };
    functions.visit_file(file);
    functions.findings
}

struct Functions<'a> {
    path: &'a str,
    limit: usize,
    findings: Vec<Finding>,
}

impl Functions<'_> {
    fn measure(&mut self, signature: &syn::Signature, end: Span) {
        let start = signature.fn_token.span.start().line;
        let lines = end.end().line - start + 1;
        if lines > self.limit {
            let (name, limit) = (&signature.ident, self.limit);
            let message = format!("`{name}` has {lines} lines, at most {limit}: split it by step");
            self.findings.push(Finding::new(self.path, start, message));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig, item.block.brace_token.span.close());
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig, item.block.brace_token.span.close());
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.measure(&item.sig, block.brace_token.span.close());
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::{LINES, TEST_LINES, check};

    fn messages(path: &str, text: &str) -> Vec<String> {
        let file = syn::parse_file(text).expect("Rust");
        check(path, &file).iter().map(ToString::to_string).collect()
    }

    fn function(lines: usize) -> String {
        format!(
            "/// Doc.\nfn long() {{\n{}}}\n",
            "    a();\n".repeat(lines - 2)
        )
    }

    #[test]
    fn finds_long_functions_of_every_sort() {
        assert_eq!(messages("a.rs", &function(LINES)), [""; 0]);
        let long = function(LINES + 1);
        for text in [
            long.clone(),
            format!("struct A;\nimpl A {{\n{long}}}\n"),
            format!("trait A {{\n{long}}}\n"),
            format!("mod a {{\n{long}}}\n"),
            format!("fn short() {{\n{long}}}\n"),
        ] {
            let found = messages("a.rs", &text);
            assert!(
                found.iter().any(|m| m.contains("`long` has 71 lines")),
                "{found:?}: {text}"
            );
        }
    }

    #[test]
    fn gives_tests_more_room() {
        assert_eq!(messages("a/tests/b.rs", &function(TEST_LINES)), [""; 0]);
        assert_eq!(messages("a/tests/b.rs", &function(TEST_LINES + 1)).len(), 1);
    }
}
