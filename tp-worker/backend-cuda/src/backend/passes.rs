//! Passes that are recorded once and then repeated by one launch.

use std::collections::BTreeMap;
use std::sync::Arc;

use lockstep_backend::{
    Axis, BackendError, Batch, DeviceDrafter, DeviceSampler, Exchange as _, InputLimits, PassKey,
    PassPlan, PassRecords, Passes,
};

use super::CudaBackend;
use crate::error::CudaError;
use crate::exchange::Communicator;
use crate::ops::{PagedCache, products::bucket, products::few::MOST_ROWS};
use crate::passes::{GraphShare, Inputs};
use crate::runtime::{Buffer, Graph, IssuedWork, TapeMode};
use crate::tensors::CudaTensor;

/// Graphs of one model's passes, by pass size.
#[derive(Default)]
pub struct CudaPasses {
    plans: Vec<PassPlan>,
    graphs: BTreeMap<PassKey, Repeated>,
}

/// A recorded pass.
struct Repeated {
    /// Dropped before the communicators that the graph names.
    graph: Graph,
    _share: GraphShare,
    _communicators: [Option<Arc<Communicator>>; 2],
    /// Operations that the pass asked of the stream.
    asked: IssuedWork,
    /// Value of `CudaBackend::rooms` when the pass was recorded: the graph names those rooms.
    rooms: u64,
}

impl CudaPasses {
    /// Number of recorded passes.
    pub fn len(&self) -> usize {
        self.graphs.len()
    }

    /// True if no pass is recorded.
    pub fn is_empty(&self) -> bool {
        self.graphs.is_empty()
    }

    /// Returns true if all recorded passes name the rooms of number `rooms`.
    fn name(&self, rooms: u64) -> bool {
        self.graphs.values().all(|pass| pass.rooms == rooms)
    }

    /// Refuses work whose collectives are not the planned ones. Otherwise this rank and its
    /// peers would wait for each other for ever.
    fn expect_planned(&self, key: PassKey, asked: &IssuedWork) -> Result<(), BackendError> {
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

impl Passes for CudaBackend {
    type Passes = CudaPasses;
    fn stage(&mut self, batch: &Batch<'_>, inputs: &mut Inputs) -> Result<(), BackendError> {
        self.failures()?;
        Ok(inputs.stage(&self.stream, batch)?)
    }
    fn holding(&self, most: PassKey, dp_ranks: usize, inputs: &Inputs) -> Option<PassKey> {
        self.smallest(most, dp_ranks, inputs.limits())
    }
    fn pad(&mut self, key: PassKey, inputs: &mut Inputs) -> PassKey {
        let Some(size) = self.smallest(key, 1, inputs.limits()) else {
            return key;
        };
        inputs.pad(size);
        size
    }
    fn forget_passes(&mut self) {
        self.rooms += 1;
    }
    fn keeps(&self, passes: &CudaPasses) -> bool {
        passes.name(self.rooms)
    }
    fn repeated(&self, inputs: &Inputs) -> Vec<PassKey> {
        self.sizes(inputs.limits()).rev().collect()
    }
    fn pass(
        &mut self,
        passes: &mut CudaPasses,
        key: PassKey,
        work: &mut dyn FnMut(&mut Self) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        self.run_pass(passes, key, work)
    }
    fn sampler(&mut self) -> Option<&mut dyn DeviceSampler<CudaTensor, Inputs, PagedCache>> {
        self.may_choose().then_some(self)
    }
    fn drafter(&mut self) -> Option<&mut dyn DeviceDrafter<CudaTensor, Inputs, Buffer<f32>>> {
        Some(self)
    }
    fn arrive(&mut self) -> Result<(), BackendError> {
        self.failures()?;
        Ok(self.exchange.arrive(&self.stream)?)
    }
}

impl CudaBackend {
    /// Makes each repetition rehearse its work first: the work asks for its operations once
    /// more, and none of them runs. Work that asks for other operations than when it was
    /// recorded is an error then. Reasons can be a look at the host's state or at the batch, or
    /// tensors that have changed places. For tests: the rehearsal takes the time that graphs
    /// save.
    pub fn check_repetitions(&mut self) {
        self.checks = true;
    }

    /// See [`lockstep_backend::Memory::inputs`].
    pub(super) fn make_inputs(&mut self, limits: &InputLimits) -> Result<Inputs, BackendError> {
        // Serving's needs are met, or found missing, at the start. Memory comes first, since no
        // algorithm serves more rows than memory has.
        let context = self.stream.context();
        let inputs = Inputs::new(context, *limits)?;
        // A model makes its inputs when its weights are there.
        self.loaders.finish();
        self.lists.reserve(context, 2 * limits.tokens)?;
        // Behind a gather there are the tokens of all DP ranks.
        let rows = limits.tokens.saturating_mul(self.exchange.dp_size());
        self.products.prepare_all(rows)?;
        Ok(inputs)
    }

    /// Sizes of the passes that are repeated for batches within `limits`.
    fn sizes(&self, limits: &InputLimits) -> impl DoubleEndedIterator<Item = PassKey> + use<'_> {
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

    /// Returns the smallest recorded size that holds `batch` on each of `dp_ranks` DP ranks;
    /// `None` if it would give other bits. Bits of a product depend on its number of rows: few
    /// rows have a kernel of their own, and many rows have the bits of the algorithm that
    /// serves them. Example: 60 tokens fit into a pass of 96, but do not run in it, since up to
    /// 64 rows are few. Some products have the rows of all DP ranks, so both counts are
    /// compared.
    fn smallest(&self, batch: PassKey, dp_ranks: usize, limits: &InputLimits) -> Option<PassKey> {
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

    /// See [`lockstep_backend::Passes::pass`].
    fn run_pass(
        &mut self,
        passes: &mut CudaPasses,
        key: PassKey,
        work: Work<'_>,
    ) -> Result<(), BackendError> {
        let done = match self.repeats(key) {
            true => self.repeat(passes, key, work),
            false => self.run_once(work),
        };
        // Levels of drafts end with their pass, and so does its batch.
        self.chains.end();
        self.attended = None;
        done
    }

    /// Returns true if passes of size `key` are recorded and repeated.
    fn repeats(&self, key: PassKey) -> bool {
        let listed = self.graphs.binary_search(&key.tokens).is_ok();
        listed && self.stays_on_device() && key.max_q_len == key.tokens
    }

    /// True if passes run without the host. A repetition would leave out exchanges that go by
    /// way of hosts.
    fn stays_on_device(&self) -> bool {
        self.group(Axis::World).1 == 1 || self.exchange.on_stream()
    }

    /// Runs `work` without recording it.
    fn run_once(&mut self, work: Work<'_>) -> Result<(), BackendError> {
        work(self)?;
        Ok(self.failures()?)
    }

    /// Runs the pass of size `key` by its graph, if there is one. Otherwise runs `work` and
    /// records it for the next time.
    fn repeat(
        &mut self,
        passes: &mut CudaPasses,
        key: PassKey,
        work: Work<'_>,
    ) -> Result<(), BackendError> {
        let known = passes.graphs.get(&key);
        if let Some(pass) = known.filter(|pass| pass.rooms == self.rooms) {
            if self.checks {
                let asked = self.listen(TapeMode::Rehearsal, work)?;
                expect_same(key, &pass.asked, &asked)?;
            }
            self.forget_plans();
            self.exchange.begin(&pass.asked.exchanges);
            pass.graph.launch(&self.stream)?;
            return Ok(self.failures()?);
        }
        // The old graph's memory is freed before the new one takes its own.
        if let Some(void) = passes.graphs.remove(&key) {
            expect_own(key, &void.asked)?;
        }
        // A rank whose collectives differ from the plan stops before it meets its peers.
        let rehearsed = self.listen(TapeMode::Rehearsal, work)?;
        passes.expect_planned(key, &rehearsed)?;
        // The run loads, compiles and allocates everything before the recording.
        let ran = self.listen(TapeMode::Run, work)?;
        let (before, _) = self.stream.context().memory()?;
        Graph::begin(&self.stream)?;
        let recorded = self.listen(TapeMode::Recording, work);
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

    /// Lets `work` ask for all of its operations, and returns them.
    fn listen(&mut self, take: TapeMode, work: Work<'_>) -> Result<IssuedWork, BackendError> {
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

/// Refuses to record anew a pass with collectives, since its peers repeat theirs as recorded.
/// Ranks that give up all recorded passes together have fresh passes instead.
fn expect_own(key: PassKey, void: &IssuedWork) -> Result<(), CudaError> {
    match void.exchanges.is_empty() {
        true => Ok(()),
        false => Err(CudaError::Unsupported(format!(
            "a pass of {key} names memory that was exchanged behind its back, on this rank alone, and would not meet what its peers have recorded: this is a bug, and --disable-cuda-graph goes around it"
        ))),
    }
}

/// Refuses to repeat a pass that asked for other operations the second time.
fn expect_same(key: PassKey, before: &IssuedWork, now: &IssuedWork) -> Result<(), CudaError> {
    match before.digest == now.digest {
        true => Ok(()),
        false => Err(CudaError::Unsupported(format!(
            "a pass of {key} asked for other work than the last of its size, so that it cannot be repeated: this is a bug, and --disable-cuda-graph goes around it"
        ))),
    }
}
