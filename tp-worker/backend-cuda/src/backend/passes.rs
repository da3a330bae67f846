//! Passes that are recorded once, and repeated by one launch.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockstep_backend::{
    Axis, Backend as _, BackendError, InputLimits, PassKey, PassPlan, PassRecords,
};

use super::CudaBackend;
use crate::error::CudaError;
use crate::graph::Graph;
use crate::inputs::Inputs;
use crate::nccl::Communicator;
use crate::products::{bucket, few::MOST_ROWS};
use crate::recorded::Share;
use crate::tape::{Asked, Take};

/// The graphs of one model's passes, by their size.
#[derive(Default)]
pub struct CudaPasses {
    plans: Vec<PassPlan>,
    graphs: BTreeMap<PassKey, Repeated>,
}

/// A pass as it was recorded.
struct Repeated {
    /// Goes before the communicators that it names.
    graph: Graph,
    _share: Share,
    _communicators: [Option<Arc<Communicator>>; 2],
    /// What was asked of the stream.
    asked: Asked,
    /// [`CudaBackend`]'s number of exchanged rooms then: it names those.
    rooms: u64,
}

impl CudaPasses {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.graphs.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.graphs.is_empty()
    }

    /// Whether all of them name these rooms.
    pub(super) fn name(&self, rooms: u64) -> bool {
        self.graphs.values().all(|pass| pass.rooms == rooms)
    }

    /// Refuses work that asks for another collective than is planned: peers would wait
    /// for it, or it for them, and for ever.
    fn expect_planned(&self, key: PassKey, asked: &Asked) -> Result<(), BackendError> {
        let asked = PassPlan {
            key,
            exchanges: asked.exchanges.clone(),
        };
        let planned = self.plans.iter().find(|plan| plan.key == key);
        let nothing = PassPlan {
            key,
            exchanges: Vec::new(),
        };
        match asked.differs(planned.unwrap_or(&nothing)) {
            None => Ok(()),
            Some((at, [asked, planned])) => Err(BackendError::Unplanned {
                key,
                at,
                asked,
                planned,
            }),
        }
    }
}

impl PassRecords for CudaPasses {
    fn planned(plans: Vec<PassPlan>) -> Self {
        let graphs = BTreeMap::new();
        Self { plans, graphs }
    }

    fn plans(&self) -> &[PassPlan] {
        &self.plans
    }

    fn noted(&self) -> Vec<PassPlan> {
        let noted = |(key, pass): (&PassKey, &Repeated)| PassPlan {
            key: *key,
            exchanges: pass.asked.exchanges.clone(),
        };
        self.graphs.iter().map(noted).collect()
    }
}

type Work<'a> = &'a mut dyn FnMut(&mut CudaBackend) -> Result<(), BackendError>;

impl CudaBackend {
    /// From now on, before each repetition, its work is rehearsed: asked for once more,
    /// and not run. Work that asks for anything else than when it was recorded, because
    /// it looks at the host's state or at the batch, or because tensors have changed
    /// places, is an error then. For tests: it takes the time that graphs save.
    pub fn check_repetitions(&mut self) {
        self.checks = true;
    }

    /// See [`lockstep_backend::Backend::inputs`].
    pub(super) fn make_inputs(&mut self, limits: &InputLimits) -> Result<Inputs, BackendError> {
        // What serving will need is there, or missing, from the start; memory first,
        // for no algorithm serves more rows than memory has.
        let context = self.stream.context();
        let inputs = Inputs::new(context, *limits)?;
        self.lists.reserve(context, 2 * limits.tokens)?;
        // Behind a gather there are the tokens of all DP ranks.
        let rows = limits.tokens.saturating_mul(self.exchange.dp_size());
        self.products.prepare_all(rows)?;
        Ok(inputs)
    }

    /// Sizes of the passes that are repeated where batches keep within `limits`.
    pub(super) fn sizes(
        &self,
        limits: &InputLimits,
    ) -> impl DoubleEndedIterator<Item = PassKey> + use<'_> {
        let (tokens, requests) = (limits.tokens, limits.requests);
        let whole = self.stays_on_device();
        let sizes = self
            .graphs
            .iter()
            .filter(move |size| whole && **size <= tokens);
        sizes.map(move |size| PassKey {
            requests: requests.min(*size),
            tokens: *size,
            max_q_len: *size,
        })
    }

    /// The smallest that holds a batch of each of so many DP ranks, and has their bits:
    /// products of few rows have others than those of many, and these others by the
    /// algorithm that serves them. Some products have the rows of all DP ranks.
    pub(super) fn smallest(
        &self,
        batch: PassKey,
        dp_ranks: usize,
        limits: &InputLimits,
    ) -> Option<PassKey> {
        let size = self.sizes(limits).find(|size| size.holds(&batch))?;
        let few = |rows: usize| rows <= MOST_ROWS;
        let alike = |dp_ranks: usize| {
            let (rows, padded) = (dp_ranks * batch.tokens, dp_ranks * size.tokens);
            match few(rows) {
                true => few(padded),
                false => bucket(padded) == bucket(rows),
            }
        };
        (alike(1) && alike(dp_ranks)).then_some(size)
    }

    /// See [`lockstep_backend::Backend::pass`].
    pub(super) fn run_pass(
        &mut self,
        passes: &mut CudaPasses,
        key: PassKey,
        work: Work<'_>,
    ) -> Result<(), BackendError> {
        let done = match self.repeats(key) {
            true => self.repeat(passes, key, work),
            false => self.run_once(work),
        };
        // Levels of drafts end with their pass.
        self.chains.end();
        done
    }

    /// Whether `key` is the size of such a pass.
    fn repeats(&self, key: PassKey) -> bool {
        let listed = self.graphs.binary_search(&key.tokens).is_ok();
        listed && self.stays_on_device() && key.max_q_len == key.tokens
    }

    /// Whether no host has a part in a pass: what ranks exchange by way of their hosts,
    /// a repetition would leave out.
    fn stays_on_device(&self) -> bool {
        self.group(Axis::World).1 == 1 || self.exchange.on_stream()
    }

    /// Runs `work`, and nothing else.
    fn run_once(&mut self, work: Work<'_>) -> Result<(), BackendError> {
        work(self)?;
        Ok(self.failures()?)
    }

    /// Runs the pass of size `key`: by its graph, where there is one, and otherwise by
    /// `work`, which is then recorded for the next time.
    fn repeat(
        &mut self,
        passes: &mut CudaPasses,
        key: PassKey,
        work: Work<'_>,
    ) -> Result<(), BackendError> {
        let known = passes.graphs.get(&key);
        if let Some(pass) = known.filter(|pass| pass.rooms == self.rooms) {
            if self.checks {
                let asked = self.listen(Take::Rehearsal, work)?;
                expect_same(key, &pass.asked, &asked)?;
            }
            self.forget_plans();
            self.exchange.begin(&pass.asked.exchanges);
            pass.graph.launch(&self.stream)?;
            return Ok(self.failures()?);
        }
        // The old graph's memory goes before the new one takes its own.
        if let Some(void) = passes.graphs.remove(&key) {
            expect_own(key, &void.asked)?;
        }
        // Ranks that differ are not let loose on each other.
        let rehearsed = self.listen(Take::Rehearsal, work)?;
        passes.expect_planned(key, &rehearsed)?;
        // Whatever it loads, compiles and allocates, it does before it is recorded.
        let ran = self.listen(Take::Run, work)?;
        let (before, _) = self.stream.context().memory()?;
        Graph::begin(&self.stream)?;
        let recorded = self.listen(Take::Recording, work);
        let graph = Graph::end(&self.stream);
        let asked = recorded?;
        expect_same(key, &ran, &asked)?;
        passes.expect_planned(key, &asked)?;
        let graph = graph?;
        let (after, _) = self.stream.context().memory()?;
        let pass = Repeated {
            graph,
            _communicators: self.exchange.communicators(),
            _share: self.ledger.count(before.saturating_sub(after)),
            asked,
            rooms: self.rooms,
        };
        passes.graphs.insert(key, pass);
        Ok(())
    }

    /// Has `work` ask for everything; what it asked for.
    fn listen(&mut self, take: Take, work: Work<'_>) -> Result<Asked, BackendError> {
        self.failures()?;
        self.forget_plans();
        self.stream.tape().start(take);
        let done = work(self);
        let asked = self.stream.tape().stop();
        // A recording or a rehearsal has cut no batch for attention.
        self.forget_plans();
        done?;
        self.failures()?;
        Ok(asked)
    }
}

/// Refuses to record anew what peers repeat as they have recorded it: who gives up all that
/// is recorded, as all ranks do together, has fresh passes.
fn expect_own(key: PassKey, void: &Asked) -> Result<(), CudaError> {
    match void.exchanges.is_empty() {
        true => Ok(()),
        false => Err(CudaError::Unsupported(format!(
            "a pass of {key} names memory that was exchanged behind its back, on this rank alone, and would not meet what its peers have recorded: this is a bug, and --disable-cuda-graph goes around it"
        ))),
    }
}

/// Refuses to repeat what was not the same twice.
fn expect_same(key: PassKey, before: &Asked, now: &Asked) -> Result<(), CudaError> {
    match before.digest == now.digest {
        true => Ok(()),
        false => Err(CudaError::Unsupported(format!(
            "a pass of {key} asked for other work than the last of its size, so that it cannot be repeated: this is a bug, and --disable-cuda-graph goes around it"
        ))),
    }
}
