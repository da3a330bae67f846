//! Kernels that may begin before the kernel before them has ended.

/// Kernels whose blocks all call `griddepcontrol_wait`, in alphabetical order. Before the wait
/// they read only what no pass writes, and write nothing.
const WAITING: [&str; 72] = [
    "accept",
    "activate",
    "attend",
    "attend_wide",
    "attention_merge",
    "attention_plan",
    "chain_advance",
    "chain_begin",
    "choose_best",
    "choose_mask",
    "choose_token",
    "choose_weigh",
    "compare_notes",
    "copy_accepted",
    "copy_cells",
    "copy_rows_16",
    "copy_rows_2",
    "copy_rows_4",
    "copy_states_16",
    "copy_states_4",
    "delta_finish",
    "delta_prepare",
    "delta_recur",
    "embed",
    "empty",
    "end_block",
    "experts_16",
    "experts_32",
    "experts_64",
    "experts_8",
    "experts_mxfp4_16",
    "experts_mxfp4_32",
    "experts_mxfp4_64",
    "experts_mxfp4_8",
    "follow",
    "group_norm",
    "group_squares",
    "heads_16",
    "heads_32",
    "heads_64",
    "heads_8",
    "join_columns",
    "join_norms",
    "mamba_finish",
    "mamba_prepare",
    "product_16",
    "product_32",
    "product_64",
    "product_8",
    "rms_norm",
    "rms_norm_wide",
    "rotate_and_store",
    "route",
    "rows_to_bf16",
    "rows_to_f32",
    "scale_logits",
    "score_1",
    "score_16",
    "score_4",
    "short_commit",
    "short_convolve",
    "sigmoid_gate",
    "silu_mul",
    "sort_choices",
    "square_sums",
    "store_latents",
    "sum_up",
    "tree_branch",
    "tree_grow",
    "tree_parents",
    "weigh_choices",
    "whole_norm",
];

/// Returns true if the kernel `name` waits for earlier work by itself.
pub(crate) fn wait(name: &str) -> bool {
    WAITING.binary_search(&name).is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::WAITING;

    /// Definitions of functions: each one's name, and its text up to the line that closes it.
    fn functions(source: &str) -> Vec<(String, String)> {
        let mut found: Vec<(String, String)> = Vec::new();
        let mut open = false;
        for line in source.lines() {
            let begins = line.starts_with("__device__")
                || line.starts_with("extern \"C\" __global__")
                || line.starts_with("template");
            if begins && !open {
                open = true;
                found.push(<(String, String)>::default());
            }
            if !open {
                continue;
            }
            let Some((name, text)) = found.last_mut() else {
                continue;
            };
            if name.is_empty()
                && let Some(head) = line
                    .strip_suffix('{')
                    .or_else(|| line.split_once(" { ").map(|of| of.0))
            {
                *name = name_of(head);
            }
            text.push_str(line);
            text.push('\n');
            open = !(line.starts_with('}') || line.ends_with('}') && !line.starts_with(' '));
        }
        found
    }

    /// A source behind the headers that it includes, each of them once.
    fn with_headers(path: &Path, seen: &mut BTreeSet<PathBuf>) -> String {
        if !seen.insert(path.to_owned()) {
            return String::new();
        }
        let source = fs::read_to_string(path).expect("a text");
        let quoted = |line: &str| {
            Some(
                line.strip_prefix("#include \"")?
                    .split_once('"')?
                    .0
                    .to_owned(),
            )
        };
        let mut whole = String::new();
        for header in source.lines().filter_map(quoted) {
            whole += &with_headers(&path.with_file_name(header), seen);
        }
        whole + &source
    }

    /// Name of the function with this head: what stands before the last list in parentheses.
    fn name_of(head: &str) -> String {
        let mut depth = 0;
        let list = head.rfind(')').map_or("", |close| &head[..=close]);
        let open = list.char_indices().rev().find(|(_, c)| {
            depth += i32::from(*c == ')') - i32::from(*c == '(');
            depth == 0
        });
        let before = open.map_or("", |(at, _)| &list[..at]);
        let word = |c: char| !c.is_alphanumeric() && c != '_';
        before.rsplit(word).next().unwrap_or_default().to_owned()
    }

    fn calls(text: &str, name: &str) -> bool {
        ["(", "<"]
            .iter()
            .any(|open| text.contains(&format!(" {name}{open}")))
    }

    /// The kernels of a source that come to a wait, and all of its kernels.
    fn kernels(source: &str) -> (BTreeSet<String>, BTreeSet<String>) {
        let functions = functions(source);
        let mut waits: BTreeSet<&str> = ["griddepcontrol_wait", "begin_after_predecessors"].into();
        for _ in 0..functions.len() {
            for (name, text) in &functions {
                if waits
                    .iter()
                    .any(|callee| *callee != name && calls(text, callee))
                {
                    waits.insert(name);
                }
            }
        }
        let all = functions
            .iter()
            .filter(|(_, text)| text.starts_with("extern"));
        let all: BTreeSet<String> = all.map(|(name, _)| name.clone()).collect();
        let waiting = all.iter().filter(|name| waits.contains(name.as_str()));
        (waiting.cloned().collect(), all.clone())
    }

    #[test]
    fn kernels_that_wait_are_those_of_the_table() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let (mut waiting, mut others) = (BTreeSet::new(), BTreeSet::new());
        for file in fs::read_dir(folder).expect("a folder") {
            let path = file.expect("a file").path();
            if path.extension().is_some_and(|end| end == "cu") {
                let (its, all) = kernels(&with_headers(&path, &mut BTreeSet::new()));
                others.extend(all.difference(&its).cloned());
                waiting.extend(its);
            }
        }
        let table: Vec<&str> = waiting.iter().map(String::as_str).collect();
        assert_eq!(table, WAITING);
        // They write weights, or serve measurements alone.
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        assert_eq!(others, ["compare_bits", "random_rows", "read_all"]);
    }
}
