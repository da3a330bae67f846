//! No code may compare an algorithm's name: it must ask for the algorithm's
//! capabilities.

use crate::Finding;

/// Name of the algorithm with the most options and texts of its own.
const NAME: &str = "ngram";

/// Paths outside the rule: the algorithm itself, words that users know and that must
/// not change, and the program's list of its algorithms.
const ALLOWED: [&str; 11] = [
    // The algorithm itself, and the program's list.
    "tp-worker/speculation/src/ngram.rs",
    "tp-worker/speculation/src/ngram/",
    "tp-worker/speculation/src/lib.rs",
    "tp-worker/speculation/src/builtin.rs",
    // Remedies and reports that name the algorithm.
    "config/src/resolve/speculation/unknown.rs",
    "bench/src/speculate.rs",
    // Refused flags of SGLang.
    "config/src/args/refused",
    // Keys of files that models have.
    "config/model-folder/src/families/wrappers/keys.rs",
    // Routes and a remedy.
    "tokenizer-manager/src/http/corpora.rs",
    "tokenizer-manager/src/http/routes.rs",
    // The rule itself.
    "xtask/",
];

pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    if ALLOWED.iter().any(|allowed| path.starts_with(allowed)) {
        return Vec::new();
    }
    let product = text
        .lines()
        .enumerate()
        .take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    let comment = |line: &str| line.trim_start().starts_with("//");
    product
        .filter(|(_, line)| !comment(line) && line.to_ascii_lowercase().contains(NAME))
        .map(|(at, _)| {
            let message = "names an algorithm: ask what it can do, or let it declare an option";
            Finding::new(path, at + 1, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn a_comparison_with_the_name_is_found() {
        let text = "// NGRAM may be explained.\nif name == \"NGRAM\" {}\n#[cfg(test)]\n\"NGRAM\"\n";
        let lines = |path: &str| {
            check(path, text)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        let found = lines("config/src/resolve.rs");
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("resolve.rs:2"), "{found:?}");
        assert!(lines("tp-worker/speculation/src/ngram/trie.rs").is_empty());
    }
}
