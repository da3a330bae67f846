//! Graphs, and the state of captures.

use std::sync::Arc;
use std::thread::ThreadId;

use crate::abi::{Answer, Handle};
use crate::order;

/// A piece of work of a device. Graphs may run it again and again.
pub(crate) type Work = Arc<dyn Fn() -> Answer + Send + Sync>;

/// Nodes of a graph; edges lead to earlier nodes only.
pub(crate) type Nodes = Vec<Node>;

/// One piece of work.
#[derive(Clone)]
pub(crate) struct Task {
    /// Name, for errors.
    pub(crate) name: &'static str,
    pub(crate) work: Work,
    /// True if the work waits for other ranks, perhaps for ever.
    pub(crate) waits: bool,
    pub(crate) overlap: Overlap,
}

/// Overlap of a task with the one before it, by programmatic dependent launch.
#[derive(Clone)]
pub(crate) enum Overlap {
    /// No kernel: what comes behind it waits for its end.
    None,
    /// A kernel, which waits for the end of what comes before it.
    Kernel,
    /// A kernel that may begin while the kernel before it runs.
    Programmatic(Start),
}

/// Kernels that have begun before their turn, at most: a device has room for few.
pub(crate) const MOST_BEGUN: usize = 3;

/// Begins a piece of work before its turn.
pub(crate) type Start = Arc<dyn Fn() -> Answer<Box<dyn Begun>> + Send + Sync>;

/// Work that has begun before its turn. If it is dropped, it never had one.
pub(crate) trait Begun: Send {
    /// Does the rest of the work.
    fn finish(self: Box<Self>) -> Answer;
}

impl Task {
    /// Runs the task, or the rest of it.
    pub(crate) fn run(&self, begun: Option<Box<dyn Begun>>) -> Answer {
        let done = begun.map_or_else(|| (self.work)(), Begun::finish);
        done.map_err(|refusal| refusal.during(self.name))
    }

    /// Returns true if a task behind this one may begin while this one runs.
    pub(crate) fn is_kernel(&self) -> bool {
        !matches!(self.overlap, Overlap::None)
    }

    /// Begins the task before its turn, if it may and the order wants that.
    pub(crate) fn begin(&self) -> Answer<Option<Box<dyn Begun>>> {
        match &self.overlap {
            Overlap::Programmatic(start) if order::begins_early() => {
                let begun = start().map_err(|refusal| refusal.during(self.name));
                begun.map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// A task of a graph.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) task: Task,
    /// Nodes that have to be done before.
    pub(crate) after: Vec<usize>,
}

/// A graph that can be launched, which takes memory of its device.
pub(crate) struct Executable {
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) device: i32,
}

/// Bytes of a node; NVIDIA does not document them.
const NODE: usize = 2 << 10;

impl Executable {
    /// Bytes that the graph takes of the device's memory.
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.len() * NODE
    }
}

/// Threads whose unsafe calls a capture forbids (`CUstreamCaptureMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Global,
    ThreadLocal,
    Relaxed,
}

/// A stream's part in a capture.
#[derive(Clone)]
pub(crate) struct Capture {
    pub(crate) graph: Handle,
    /// Predecessors of the stream's next node.
    pub(crate) tail: Vec<usize>,
}

/// A capture under way.
pub(crate) struct Recording {
    pub(crate) nodes: Nodes,
    /// The stream where the capture began, and where it has to end.
    pub(crate) origin: Handle,
    pub(crate) mode: Mode,
    /// The thread that began the capture.
    pub(crate) thread: ThreadId,
    /// True once a call was refused that spoils the capture.
    pub(crate) invalid: bool,
}

/// Runs every node once, in an order drawn from those that the edges allow.
///
/// # Errors
/// The first error of a node.
pub(crate) fn run(nodes: &Nodes) -> Answer {
    let mut done = vec![false; nodes.len()];
    let mut begun: Vec<Option<Box<dyn Begun>>> = nodes.iter().map(|_| None).collect();
    let mut left: Vec<usize> = (0..nodes.len()).collect();
    while !left.is_empty() {
        let ready = |at: &usize| nodes[left[*at]].after.iter().all(|before| done[*before]);
        let ready: Vec<usize> = (0..left.len()).filter(ready).collect();
        let next = left.swap_remove(ready[order::below(ready.len())]);
        begin_behind(nodes, next, &mut begun)?;
        nodes[next].task.run(begun[next].take())?;
        done[next] = true;
    }
    Ok(())
}

/// Begins kernels behind a kernel that is about to run, and those behind them: a kernel that
/// has begun lets others begin, too. An edge to a programmatic launch is its only one.
fn begin_behind(nodes: &Nodes, kernel: usize, begun: &mut [Option<Box<dyn Begun>>]) -> Answer {
    let mut from = vec![kernel];
    while let Some(before) = from.pop() {
        for (number, node) in nodes.iter().enumerate().skip(before + 1) {
            if node.after != [before] {
                continue;
            }
            let count = begun.iter().flatten().count();
            if begun[number].is_none() && count < MOST_BEGUN {
                begun[number] = node.task.begin()?;
            }
            if begun[number].is_some() {
                from.push(number);
            }
        }
    }
    Ok(())
}

/// Returns true if all `wanted` nodes are among `from` or their predecessors.
pub(crate) fn reaches(nodes: &Nodes, from: &[usize], wanted: &[usize]) -> bool {
    let mut reached = vec![false; nodes.len()];
    let mut next = from.to_vec();
    while let Some(node) = next.pop() {
        if !std::mem::replace(&mut reached[node], true) {
            next.extend(&nodes[node].after);
        }
    }
    wanted.iter().all(|node| reached[*node])
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::{Node, Nodes, Overlap, Task, reaches, run};

    /// A diamond: 0, then 1 and 2, then 3. The nodes note the order in which they run.
    fn diamond() -> (Nodes, Arc<Mutex<Vec<usize>>>) {
        let seen: Arc<Mutex<Vec<usize>>> = Arc::default();
        let node = |(number, after): (usize, &[usize])| {
            let seen = seen.clone();
            let work = move || {
                seen.lock().expect("not poisoned").push(number);
                Ok(())
            };
            Node {
                task: Task {
                    name: "note",
                    work: Arc::new(work),
                    waits: false,
                    overlap: Overlap::None,
                },
                after: after.to_vec(),
            }
        };
        let edges: [&[usize]; 4] = [&[], &[0], &[0], &[1, 2]];
        (edges.into_iter().enumerate().map(node).collect(), seen)
    }

    #[test]
    fn all_orders_that_edges_allow_happen() {
        let (nodes, seen) = diamond();
        let mut orders = std::collections::BTreeSet::new();
        for _ in 0..64 {
            run(&nodes).expect("the nodes fail never");
            orders.insert(std::mem::take(&mut *seen.lock().expect("not poisoned")));
        }
        let expected = [vec![0, 1, 2, 3], vec![0, 2, 1, 3]];
        assert_eq!(orders, expected.into());
    }

    #[test]
    fn what_comes_before_is_reached() {
        let (nodes, _) = diamond();
        assert!(reaches(&nodes, &[3], &[0, 1, 2, 3]));
        assert!(reaches(&nodes, &[1], &[0]));
        assert!(!reaches(&nodes, &[1], &[2]));
        assert!(reaches(&nodes, &[], &[]));
    }
}
