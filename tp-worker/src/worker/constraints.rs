//! Constraints of requests, on a lead.

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        mpsc::{self, Receiver, TryRecvError},
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
    fn begin(&self, constraint: &Constraint, output: &[u32]) -> Result<Box<Matcher>, String> {
        let compiler = self.compiler().map_err(|error| error.to_string())?;
        let matcher = compiler.matcher(constraint);
        let mut matcher = matcher.map_err(|error| error.to_string())?;
        for token in output {
            let taken = matcher.take(*token);
            taken.map_err(|_| format!("token {token} of its own output breaks it"))?;
        }
        Ok(Box::new(matcher))
    }

    /// Makes the second state of an output whose first was made; `None` if it can't be made.
    fn look_ahead(&self, constraint: &Constraint, output: &[u32]) -> Option<Box<Lookahead>> {
        let mut ahead = self.compiler().ok()?.lookahead(constraint)?;
        ahead.follow(output).ok()?;
        Some(Box::new(ahead))
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
        let drafts = self.source.drafts && open.generation.max_draft_steps != Some(0);
        let (source, (made, coming)) = (self.source.clone(), mpsc::channel());
        let (ahead_made, ahead) = mpsc::channel();
        let make = move || {
            let begun = source.begin(&constraint, &output);
            let drafts = drafts && begun.is_ok();
            // A step may wait for the first state. It never waits for the second, so that the
            // end of a text does not depend on drafts.
            let _ = made.send(begun);
            if drafts && let Some(ahead) = source.look_ahead(&constraint, &output) {
                let _ = ahead_made.send(ahead);
            }
        };
        let thread = thread::Builder::new().name("constraint".to_owned());
        Some(match thread.spawn(make) {
            Ok(_) => SlotConstraint::new(State::Coming(coming), Ahead::Coming(ahead)),
            Err(error) => SlotConstraint::new(State::Failed(error.to_string()), Ahead::None),
        })
    }
}

/// State of one constrained output.
#[derive(Debug)]
pub struct SlotConstraint {
    state: State,
    /// Walks along drafts.
    ahead: Ahead,
    /// Forbidden drafts that went before they were verified, and are not reported.
    cut: u32,
    /// Time that a step stood still for it, and has not reported.
    waited: Option<Duration>,
    /// True once it was told that the constraint can't be followed.
    told: bool,
}

#[derive(Debug)]
enum State {
    /// It is being compiled, while the prompt is computed.
    Coming(Receiver<Result<Box<Matcher>, String>>),
    /// It takes tokens.
    Ready(Box<Matcher>),
    /// There is none, for this reason.
    Failed(String),
}

/// The state that walks along drafts.
#[derive(Debug)]
enum Ahead {
    /// It is being made, while the first drafts may do without it.
    Coming(Receiver<Box<Lookahead>>),
    /// It walks.
    Ready(Box<Lookahead>),
    /// There is none: nothing is drafted, or it can't be made.
    None,
}

impl Ahead {
    /// Returns the state if it is there. Never waits for it.
    fn ready(&mut self) -> Option<&mut Lookahead> {
        if let Self::Coming(coming) = self {
            match coming.try_recv() {
                Ok(ahead) => *self = Self::Ready(ahead),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => *self = Self::None,
            }
        }
        match self {
            Self::Ready(ahead) => Some(ahead),
            Self::Coming(_) | Self::None => None,
        }
    }
}

impl SlotConstraint {
    fn new(state: State, ahead: Ahead) -> Self {
        Self {
            state,
            ahead,
            cut: 0,
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
        work.cut_drafts += u64::from(std::mem::take(&mut self.cut));
        let matcher = match &mut self.state {
            State::Ready(matcher) => Some(matcher.take_computed()),
            State::Coming(_) | State::Failed(_) => None,
        };
        let ahead = self.ahead.ready().map(Lookahead::take_computed);
        for computed in matcher.into_iter().chain(ahead) {
            work.masks += computed.masks;
            work.mask_us += micros(computed.took);
        }
    }

    /// Counts forbidden drafts that went before they were verified.
    pub fn count_cut(&mut self, drafts: u32) {
        self.cut += drafts;
    }

    /// Returns the state as the verifier sees it.
    pub fn as_constraint(&mut self) -> &mut dyn TokenConstraint {
        self
    }

    /// Returns why the constraint can't be followed, if that is so and was not told before.
    pub fn failure(&mut self) -> Option<&str> {
        let failure = match &self.state {
            State::Coming(_) => None,
            State::Ready(matcher) => matcher.failure(),
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
                Some(Ok(matcher)) => State::Ready(matcher),
                Some(Err(why)) => State::Failed(why),
                None => State::Failed("compiling it takes too long".to_owned()),
            };
        }
        match &mut self.state {
            State::Ready(matcher) => Ok(matcher),
            State::Coming(_) | State::Failed(_) => Err(SamplingError::Constraint),
        }
    }

    /// Returns true if masks behind drafts can be had, `tokens` into the output. It never waits.
    pub fn looks_ahead(&self, tokens: usize) -> bool {
        matches!(&self.ahead, Ahead::Ready(ahead) if ahead.walks(tokens))
    }

    /// Returns the state that walks along drafts, if it is there.
    pub fn ahead(&mut self) -> Option<&mut Lookahead> {
        self.ahead.ready()
    }

    /// Fills the empty `chain` with the text that is forced behind `output`, at most `most`
    /// tokens. Returns true if nothing else may be drafted: the chain is full, or ends the output.
    pub fn force(&mut self, output: &[u32], chain: &mut Vec<u32>, most: usize) -> bool {
        let (State::Ready(matcher), Some(ahead)) = (&mut self.state, self.ahead.ready()) else {
            return false;
        };
        // The mask of this place is wanted in any case, so a text that is free costs nothing.
        let Some(first) = matcher.forced() else {
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
    /// number of drafts that are left. A forbidden draft before which the chain is cut is counted.
    pub fn guide(&mut self, output: &[u32], chain: &mut Vec<u32>, most: usize) -> usize {
        let drafted = chain.len();
        let Some(ahead) = self.ahead.ready() else {
            return drafted;
        };
        let left = ahead.guide(output, chain, most);
        // Behind the end of an output, drafts are idle and not forbidden.
        let ends = chain[..left].last().is_some_and(|last| ahead.is_end(*last));
        self.cut += u32::from(left < drafted && !ends);
        left
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

#[cfg(test)]
mod tests;
