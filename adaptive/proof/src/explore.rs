//! All states that a model can reach, breadth first.

use std::{
    collections::HashSet,
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
};

/// Something that goes from state to state.
pub trait Model {
    /// Everything that its future depends on.
    type State: Clone + Hash;
    /// What can happen.
    type Action: Copy + Debug;

    /// Where it begins.
    fn initial(&self) -> Self::State;
    /// What can happen in a state; nothing in one that is an end, and only there.
    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>);
    /// The state after `action`, and which of [`Self::SIGHTS`] it shows, as bits;
    /// or what must never happen and did.
    ///
    /// # Errors
    /// What happened, in words.
    fn next(&self, state: &Self::State, action: Self::Action)
    -> Result<(Self::State, u32), String>;
    /// Whether a state is an orderly end.
    fn is_end(&self, state: &Self::State) -> bool;
    /// What has to happen sometimes.
    const SIGHTS: &'static [&'static str];
}

/// What exploring has found.
#[derive(Debug)]
pub struct Report<A> {
    /// States, each counted once.
    pub states: usize,
    /// Ways from one to another.
    pub transitions: u64,
    /// Actions to the state that is furthest away.
    pub depth: u32,
    /// States that are orderly ends.
    pub ends: u64,
    /// Those of [`Model::SIGHTS`] that were seen, as bits.
    pub seen: u32,
    /// What must never happen, and a shortest way to it.
    pub fault: Option<(String, Vec<A>)>,
}

/// Those of [`Model::SIGHTS`] that are not among `seen`.
pub fn unseen<M: Model>(seen: u32) -> Vec<&'static str> {
    let sights = M::SIGHTS.iter().enumerate();
    sights
        .filter(|(at, _)| seen & (1 << at) == 0)
        .map(|(_, sight)| *sight)
        .collect()
}

/// Explores `model` until every state is known, or something has happened that must
/// not; a state without a way on that is no end is that, too.
///
/// States are told apart by 64 bits of a hash: of ten million, two are taken for
/// one with a probability of three in a million.
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
    /// Of each state the one before it and the action between them.
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
