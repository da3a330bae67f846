//! Conversations with a model of `tests/fixtures/nextn`: later turns begin with earlier ones. Texts
//! and the bits of recurrent states are compared with those of plain decoding: each request alone,
//! without a prefix cache and without drafts.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex},
};

use lockstep_devices::Registry;
use lockstep_local_engine::{Completion, LocalEngine};
use lockstep_tp_worker::worker::{SeenState, StateProbe};
use lockstep_types::{
    request::Request,
    sampling::{LogprobParams, SamplingParams},
};

use crate::{
    load::{idle, run},
    oracle::compare,
    requests::Job,
    setup::{Form, Layers, Setup},
};

/// A model of recurrent layers and attention with a draft layer, dense and with experts.
pub const DENSE: Layers = Layers::Fixture("qwen3_5");
pub const EXPERTS: Layers = Layers::Fixture("qwen3_5_moe");

/// Tokens of chunks of plain decoding: it has states at all multiples in prompts, and at all
/// positions of outputs. So it has one wherever a copy is at the end of a page of 16 tokens.
const CHUNK: i64 = 16;

/// Returns `count` tokens that each fixture has, others for each seed.
pub fn words(seed: u32, count: usize) -> Vec<u32> {
    let word = |at: u32| 3 + (at.wrapping_mul(seed.wrapping_mul(2) + 31) + seed) % 320;
    (0..count as u32).map(word).collect()
}

/// Returns a request for the greedy text behind `ids`, which does not end by itself.
pub fn ask(ids: &[u32], max_new_tokens: u32) -> Request {
    let mut request = Request::new(ids.to_vec(), max_new_tokens);
    request.generation.sampling = SamplingParams::greedy();
    request.generation.sampling.ignore_eos = true;
    request.generation.logprobs = LogprobParams {
        output: true,
        top: 2,
        prompt_start: None,
    };
    request
}

/// Returns a setup of a fixture, few of whose requests run at once.
pub fn plain(layers: Layers, form: Form) -> Setup {
    Setup {
        layers,
        running: 4,
        tokens: 4096,
        chunk: Some(CHUNK),
        ..Setup::of(form)
    }
}

fn digest(values: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    values.hash(&mut hasher);
    hasher.finish()
}

/// Digests of states' bits by the rank that has them, among those that divide the heads, and by the
/// text.
type Known = HashMap<(usize, u64), u64>;

/// Engines that decode plainly, one for each kind of layers and each form.
#[derive(Default)]
pub struct Plain(BTreeMap<(String, Form), PlainEngine>);

struct PlainEngine {
    engine: LocalEngine,
    known: Arc<Mutex<Known>>,
}

/// Counts of states that had to have the bits of plain decoding, and had.
#[derive(Debug, Default, Clone, Copy)]
pub struct Compared {
    pub live: u64,
    pub kept: u64,
}

/// States that a watched engine showed.
#[derive(Default)]
struct Watched {
    compared: Compared,
    wrong: Vec<String>,
}

impl Plain {
    fn of(&mut self, setup: &Setup) -> &mut PlainEngine {
        let key = (format!("{:?}", setup.layers), setup.form());
        self.0.entry(key).or_insert_with(|| {
            let known = Arc::<Mutex<Known>>::default();
            let (seen, heads) = (known.clone(), setup.tp / setup.dp);
            let probe = StateProbe::new(move |state| {
                let key = (state.rank % heads, digest(state.text));
                let bits = digest(state.bits);
                let before = seen.lock().unwrap().insert(key, bits);
                assert!(before.is_none_or(|before| before == bits));
            });
            let plain = plain(setup.layers, setup.form());
            let engine = plain.start_watched(Registry::builtin(), probe);
            PlainEngine { engine, known }
        })
    }

    /// Forgets all states, so that they take no memory.
    pub fn forget(&mut self) {
        for plain in self.0.values() {
            plain.known.lock().unwrap().clear();
        }
    }

    /// Returns the answer to a request in the form of `setup`.
    pub fn answer(&mut self, setup: &Setup, request: &Request) -> Completion {
        let mut request = request.clone();
        request.generation.max_draft_steps = None;
        self.of(setup).engine.run(vec![request]).unwrap().remove(0)
    }

    /// Starts an engine whose states are compared with those of the answers so far, wherever plain
    /// decoding had a state too. Each engine is started with algorithms of its own.
    fn start(&mut self, setup: &Setup, registry: Registry) -> (LocalEngine, Arc<Mutex<Watched>>) {
        let (known, heads) = (self.of(setup).known.clone(), setup.tp / setup.dp);
        let watched = Arc::<Mutex<Watched>>::default();
        let seen = watched.clone();
        let probe = StateProbe::new(move |state: SeenState<'_>| {
            let key = (state.rank % heads, digest(state.text));
            let Some(expected) = known.lock().unwrap().get(&key).copied() else {
                return;
            };
            let mut watched = seen.lock().unwrap();
            match state.kept {
                true => watched.compared.kept += 1,
                false => watched.compared.live += 1,
            }
            if digest(state.bits) != expected {
                let (kept, tokens) = (state.kept, state.text.len());
                let wrong = format!("rank {}, kept {kept}, {tokens} tokens", state.rank);
                watched.wrong.push(wrong);
            }
        });
        (setup.start_watched(registry, probe), watched)
    }

    /// Runs jobs whose plain answers are `expected`, and compares texts and states. Calls `before`
    /// before every step, and `after` with the engine at the end.
    pub fn check(
        &mut self,
        setup: &Setup,
        (jobs, expected): (&[Job], &[Completion]),
        before: impl FnMut(&mut LocalEngine),
        after: impl FnOnce(&LocalEngine, &[Completion]),
    ) -> Compared {
        self.check_with(setup, Registry::builtin(), (jobs, expected), before, after)
    }

    /// Does what [`Self::check`] does, with the algorithms and policies of a program.
    pub fn check_with(
        &mut self,
        setup: &Setup,
        registry: Registry,
        (jobs, expected): (&[Job], &[Completion]),
        before: impl FnMut(&mut LocalEngine),
        after: impl FnOnce(&LocalEngine, &[Completion]),
    ) -> Compared {
        let (mut engine, watched) = self.start(setup, registry);
        let what = format!("{setup:?}");
        let found = run(&what, &mut engine, jobs, before);
        let Watched { compared, wrong } = std::mem::take(&mut *watched.lock().unwrap());
        assert!(wrong.is_empty(), "wrong states, {what}: {wrong:?}");
        for (job, (found, expected)) in found.iter().zip(expected).enumerate() {
            compare(&format!("job {job}, {what}"), found, expected);
        }
        after(&engine, &found);
        idle(&mut engine);
        compared
    }
}

/// Tokens of an answer's prompt that came from the cache.
pub fn cached(answer: &Completion) -> u32 {
    answer.finish.as_ref().unwrap().usage.cached_tokens
}

/// Requests to an engine of that setup that come one after the other, each when the one before has
/// ended.
pub fn in_turn(setup: &Setup, requests: impl IntoIterator<Item = Request>) -> Vec<Job> {
    // Chunks end at the ends of pages. So two steps take in at least the tokens of one chunk.
    let steps = |tokens: usize| match setup.chunk {
        Some(chunk) => 2 * tokens.div_ceil(chunk as usize),
        None => 1,
    };
    let mut arrival = 0;
    let job = |request: Request| {
        let at = arrival;
        // A step for each token, if nothing is drafted, and those of the prompt.
        arrival += 8 + request.max_new_tokens as usize + steps(request.input_ids.len());
        Job {
            request,
            arrival: at,
            patience: None,
        }
    };
    requests.into_iter().map(job).collect()
}

/// The form of one rank with float32 weights.
pub const ONE: Form = Form::of_ranks(1);

/// Types of weights, ranks and DP ranks: as in [`Form`].
pub const FORMS: [Form; 4] = [
    ONE,
    Form { bf16: true, ..ONE },
    Form::of_ranks(2),
    Form {
        tp: 2,
        dp: 2,
        ..ONE
    },
];
