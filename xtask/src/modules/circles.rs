//! Circles of a directed graph.

use std::collections::{BTreeMap, BTreeSet};

/// The targets of the edges of each node.
pub(super) type Graph = BTreeMap<String, BTreeSet<String>>;

/// Returns the sets of nodes that reach each other, sorted. Sets of one node are left
/// out.
pub(super) fn circles(graph: &Graph) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> = graph
        .keys()
        .map(|node| (node, reachable(graph, node)))
        .collect();
    let both = |a: &String, b: &String| {
        let leads = |from, to| reached.get(from).is_some_and(|set| set.contains(to));
        leads(a, b) && leads(b, a)
    };
    let circle = |node: &String| -> Vec<String> {
        let others = graph.keys().filter(|other| both(node, other));
        others.cloned().collect()
    };
    let all: BTreeSet<Vec<String>> = graph.keys().map(circle).collect();
    all.into_iter().filter(|circle| circle.len() > 1).collect()
}

/// Returns all nodes that can be reached from `start`. `start` itself counts only if a
/// path leads back to it.
fn reachable<'a>(graph: &'a Graph, start: &String) -> BTreeSet<&'a String> {
    let mut seen = BTreeSet::new();
    let mut next: Vec<&String> = graph.get(start).into_iter().flatten().collect();
    while let Some(node) = next.pop() {
        if seen.insert(node) {
            next.extend(graph.get(node).into_iter().flatten());
        }
    }
    seen
}
