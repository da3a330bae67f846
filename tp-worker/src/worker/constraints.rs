//! Constraints of requests, on a lead.

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use lockstep_constraint::{Compiler, ConstraintError, Lookahead, Matcher, Vocabulary};
use lockstep_sampling::{SamplingError, TokenConstraint};
use lockstep_text::Tokenizer;
use lockstep_types::{ConstraintWork, ModelConfig, constraint::Constraint, step::SlotOpen};

/// Longest time that a step waits for a constraint. The front has refused constraints that take
/// long to compile, so only a machine that stands still takes it.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Compiles the constraints of a lead's requests, on threads beside the steps.
#[derive(Debug)]
pub struct Constraints {
    source: Arc<Source>,
    /// Work since the last step.
    pub work: ConstraintWork,
}

/// The model's vocabulary, read when it is first needed.
struct Source {
    folder: PathBuf,
    width: usize,
    end_tokens: Vec<u32>,
    /// True if requests may have drafts.
    drafts: bool,
    compiler: OnceLock<Result<Compiler, ConstraintError>>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl Source {
    fn compiler(&self) -> Result<&Compiler, ConstraintError> {
        let compiler = self.compiler.get_or_init(|| {
            let tokenizer = Tokenizer::load(&self.folder)
                .map_err(|error| ConstraintError::Vocabulary(error.to_string()))?;
            let vocabulary = Vocabulary::new(&tokenizer, self.width, &self.end_tokens)?;
            Ok(Compiler::new(Arc::new(vocabulary)))
        });
        compiler.as_ref().map_err(Clone::clone)
    }

    /// Makes the state of an output that has these tokens already.
    fn begin(&self, constraint: &Constraint, output: &[u32]) -> Result<Box<Followed>, String> {
        let compiler = self.compiler().map_err(|error| error.to_string())?;
        let matcher = compiler.matcher(constraint);
        let mut matcher = matcher.map_err(|error| error.to_string())?;
        for token in output {
            let taken = matcher.take(*token);
            taken.map_err(|_| format!("token {token} of its own output breaks it"))?;
        }
        let mut ahead = match self.drafts {
            true => compiler.lookahead(constraint).ok(),
            false => None,
        };
        if let Some(ahead) = &mut ahead {
            // If it fails, it drafts nothing.
            let _ = ahead.follow(output);
        }
        Ok(Box::new(Followed { matcher, ahead }))
    }
}

impl Constraints {
    /// Makes the compiler for a model. `drafts` says if requests may have drafts.
    pub fn new(model: &ModelConfig, drafts: bool) -> Self {
        Self {
            source: Arc::new(Source {
                folder: model.path.clone(),
                width: model.vocab_size,
                end_tokens: model.eos_token_ids.clone(),
                drafts,
                compiler: OnceLock::new(),
            }),
            work: ConstraintWork::default(),
        }
    }

    /// Returns the work since the last call.
    pub fn take_work(&mut self) -> ConstraintWork {
        let mut work = std::mem::take(&mut self.work);
        if let Some(Ok(compiler)) = self.source.compiler.get() {
            [work.compiles, work.cache_hits] = compiler.take_made();
        }
        work
    }

    /// Begins to read the vocabulary.
    pub fn read_vocabulary(&self) {
        let source = self.source.clone();
        let read = move || {
            if let Err(error) = source.compiler() {
                tracing::info!(%error, "outputs are not constrained");
            }
        };
        // Without a thread, the first request reads it.
        let _ = thread::Builder::new()
            .name("vocabulary".to_owned())
            .spawn(read);
    }

    /// Begins the state of a request that is given a slot; `None` if its output is free.
    pub fn open(&self, open: &SlotOpen) -> Option<SlotConstraint> {
        let constraint = open.generation.constraint.clone()?;
        let output = open.token_ids[open.prompt_len as usize..].to_vec();
        let (source, (made, coming)) = (self.source.clone(), mpsc::channel());
        let make = move || {
            let _ = made.send(source.begin(&constraint, &output));
        };
        let thread = thread::Builder::new().name("constraint".to_owned());
        Some(match thread.spawn(make) {
            Ok(_) => SlotConstraint::new(State::Coming(coming)),
            Err(error) => SlotConstraint::new(State::Failed(error.to_string())),
        })
    }
}

/// State of one constrained output.
#[derive(Debug)]
pub struct SlotConstraint {
    state: State,
    /// Time that a step stood still for it, and has not reported.
    waited: Option<Duration>,
    /// True once it was told that the constraint can't be followed.
    told: bool,
}

#[derive(Debug)]
enum State {
    /// It is being compiled, while the prompt is computed.
    Coming(Receiver<Result<Box<Followed>, String>>),
    /// It takes tokens.
    Ready(Box<Followed>),
    /// There is none, for this reason.
    Failed(String),
}

/// A constraint that is followed.
#[derive(Debug)]
struct Followed {
    matcher: Matcher,
    /// Walks along drafts; `None` where nothing is drafted.
    ahead: Option<Lookahead>,
}

impl SlotConstraint {
    fn new(state: State) -> Self {
        Self {
            state,
            waited: None,
            told: false,
        }
    }

    /// Adds the work since the last call.
    pub fn report(&mut self, work: &mut ConstraintWork) {
        if let Some(waited) = self.waited.take() {
            work.waits += 1;
            work.wait_us += micros(waited);
        }
        if let State::Ready(followed) = &mut self.state {
            let computed = followed.matcher.take_computed();
            work.masks += computed.masks;
            work.mask_us += micros(computed.took);
        }
    }

    /// Returns the state as the verifier sees it.
    pub fn as_constraint(&mut self) -> &mut dyn TokenConstraint {
        self
    }

    /// Returns why the constraint can't be followed, if that is so and was not told before.
    pub fn failure(&mut self) -> Option<&str> {
        let failure = match &self.state {
            State::Coming(_) => None,
            State::Ready(followed) => followed.matcher.failure(),
            State::Failed(why) => Some(why.as_str()),
        };
        let told = self.told;
        self.told |= failure.is_some();
        failure.filter(|_| !told)
    }

    fn matcher(&mut self) -> Result<&mut Matcher, SamplingError> {
        if let State::Coming(coming) = &self.state {
            let made = match coming.try_recv() {
                Ok(made) => Some(made),
                Err(_) => {
                    let begun = Instant::now();
                    let made = coming.recv_timeout(LONGEST_WAIT);
                    self.waited = Some(begun.elapsed());
                    made.ok()
                }
            };
            self.state = match made {
                Some(Ok(followed)) => State::Ready(followed),
                Some(Err(why)) => State::Failed(why),
                None => State::Failed("compiling it takes too long".to_owned()),
            };
        }
        match &mut self.state {
            State::Ready(followed) => Ok(&mut followed.matcher),
            State::Coming(_) | State::Failed(_) => Err(SamplingError::Constraint),
        }
    }

    /// Fills the empty `chain` with the text that is forced behind `output`, at most `most`
    /// tokens. Returns true if nothing else may be drafted: the chain is full, or ends the output.
    pub fn force(&mut self, output: &[u32], chain: &mut Vec<u32>, most: usize) -> bool {
        let State::Ready(followed) = &mut self.state else {
            return false;
        };
        // The mask of this place is wanted in any case, so a text that is free costs nothing.
        let forced = followed.matcher.forced();
        let (Some(first), Some(ahead)) = (forced, &mut followed.ahead) else {
            return false;
        };
        if ahead.is_end(first) {
            chain.push(first);
            return true;
        }
        ahead.guide(output, chain, most);
        chain.len() == most || chain.last().is_some_and(|last| ahead.is_end(*last))
    }

    /// Makes a chain of drafts follow the constraint, as [`Lookahead::guide`] does. Returns the
    /// number of drafts that are left.
    pub fn guide(&mut self, output: &[u32], chain: &mut Vec<u32>, most: usize) -> usize {
        let ahead = match &mut self.state {
            State::Ready(followed) => followed.ahead.as_mut(),
            State::Coming(_) | State::Failed(_) => None,
        };
        ahead.map_or(chain.len(), |ahead| ahead.guide(output, chain, most))
    }
}

impl TokenConstraint for SlotConstraint {
    fn allowed(&mut self) -> Result<&[u32], SamplingError> {
        self.matcher()?.allowed()
    }

    fn take(&mut self, token: u32) -> Result<(), SamplingError> {
        self.matcher()?.take(token)
    }

    fn give_back(&mut self, tokens: usize) -> Result<(), SamplingError> {
        self.matcher()?.give_back(tokens)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
