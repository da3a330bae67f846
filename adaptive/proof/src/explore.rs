//! Breadth-first search of all states that a model can reach.

use std::{
    collections::HashSet,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
};

/// A system that goes from state to state.
pub trait Model {
    /// All facts that the future depends on.
    type State: Clone + Hash;
    /// An event that can happen.
    type Action: Copy + Debug;

    /// Returns the state in which the model begins.
    fn initial(&self) -> Self::State;
    /// Lists the actions that can happen in a state. Only a state that is an end may have none.
    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>);
    /// Returns the state after `action`, and the [`Self::SIGHTS`] that the action shows, as
    /// bits.
    ///
    /// # Errors
    /// An event that must never happen, in words.
    fn next(&self, state: &Self::State, action: Self::Action)
    -> Result<(Self::State, u32), String>;
    /// Returns true if a state is an orderly end.
    fn is_end(&self, state: &Self::State) -> bool;
    /// Events that have to happen sometimes.
    const SIGHTS: &'static [&'static str];
}

/// Result of a search.
#[derive(Debug)]
pub struct Report<A> {
    /// Number of states, each counted once.
    pub states: usize,
    /// Number of transitions between states.
    pub transitions: u64,
    /// Number of actions to the furthest state.
    pub depth: u32,
    /// Number of states that are orderly ends.
    pub ends: u64,
    /// Bits of the [`Model::SIGHTS`] that were seen.
    pub seen: u32,
    /// An event that must never happen, with a shortest way to it.
    pub fault: Option<(String, Vec<A>)>,
}

/// Returns the [`Model::SIGHTS`] that are not among `seen`.
pub fn unseen<M: Model>(seen: u32) -> Vec<&'static str> {
    let sights = M::SIGHTS.iter().enumerate();
    sights
        .filter(|(at, _)| seen & (1 << at) == 0)
        .map(|(_, sight)| *sight)
        .collect()
}

/// Explores `model` until every state is known, or until an event has happened that must not. A
/// state that is no end and has no action is such an event, too.
///
/// States are told apart by 64 bits of a hash. Among ten million states, two are taken for one
/// with a probability of three in a million.
pub fn explore<M: Model>(model: &M) -> Report<M::Action> {
    let mut search = Search {
        model,
        known: HashSet::new(),
        came_by: Vec::new(),
        report: Report {
            states: 0,
            transitions: 0,
            depth: 0,
            ends: 0,
            seen: 0,
            fault: None,
        },
    };
    search.run();
    search.report.states = search.known.len();
    search.report
}

struct Search<'a, M: Model> {
    model: &'a M,
    known: HashSet<u64>,
    /// For each state: the state before it, and the action between the two.
    came_by: Vec<Option<(u32, M::Action)>>,
    report: Report<M::Action>,
}

impl<M: Model> Search<'_, M> {
    fn run(&mut self) {
        let initial = self.model.initial();
        self.is_new(&initial);
        self.came_by.push(None);
        let mut level = vec![(0, initial)];
        let mut actions = Vec::new();
        while !level.is_empty() {
            let mut next = Vec::new();
            for (at, state) in level {
                actions.clear();
                self.model.actions(&state, &mut actions);
                let is_end = self.model.is_end(&state);
                self.report.ends += u64::from(is_end);
                if actions.is_empty() && !is_end {
                    return self.found("no way on".to_owned(), at, None);
                }
                for action in actions.iter().copied() {
                    self.report.transitions += 1;
                    match self.model.next(&state, action) {
                        Err(what) => return self.found(what, at, Some(action)),
                        Ok((after, seen)) => {
                            self.report.seen |= seen;
                            if self.is_new(&after) {
                                let number = self.came_by.len() as u32;
                                self.came_by.push(Some((at, action)));
                                next.push((number, after));
                            }
                        }
                    }
                }
            }
            level = next;
            self.report.depth += u32::from(!level.is_empty());
        }
    }

    fn is_new(&mut self, state: &M::State) -> bool {
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        self.known.insert(hasher.finish())
    }

    fn found(&mut self, what: String, at: u32, last: Option<M::Action>) {
        let mut way: Vec<M::Action> = last.into_iter().collect();
        let mut at = at;
        while let Some((before, action)) = self.came_by[at as usize] {
            way.push(action);
            at = before;
        }
        way.reverse();
        self.report.fault = Some((what, way));
    }
}
