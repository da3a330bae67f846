//! Download of one file, from the hub into the cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE};
use hyper::{Response, StatusCode};
use tokio::task::spawn_blocking;

use crate::answer::ListedFile;
use crate::cache::{Repository, is_file_of};
use crate::client::{Client, Failure};
use crate::lock::{Lock, Wait};
use crate::part::{Part, bytes_of_parts};
use crate::progress::{Event, EventSink};
use crate::retries::{RequestContext, Retries};
use crate::{HubError, Settings, TransferLimits};

/// State that all files of a model share.
#[derive(Clone)]
pub(crate) struct Download {
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    pub(crate) context: RequestContext,
    pub(crate) repository: Repository,
    pub(crate) commit: String,
    pub(crate) events: EventSink,
    /// True once a user was told that the cache's disk has no locks.
    pub(crate) without_locks: Arc<AtomicBool>,
}

impl Download {
    /// A copy of this state with another patience.
    pub(crate) fn with(&self, limits: TransferLimits) -> Self {
        let mut other = self.clone();
        other.client = self.client.with(limits);
        other.settings.limits = limits;
        other
    }

    /// Loads a file that the snapshot lacks, from the byte on that is missing.
    pub(crate) async fn file(self: Arc<Self>, listed: ListedFile) -> Result<(), HubError> {
        if self.repository.has(&self.commit, &listed) {
            return Ok(());
        }
        let lock = self.lock(&listed).await?;
        let (here, wanted) = (self.clone(), listed.clone());
        let opening = spawn_blocking(move || here.open(&wanted));
        if let Some(part) = opening.await.map_err(std::io::Error::other)?? {
            self.fill(part, &listed).await?;
            self.repository.link(&self.commit, &listed)?;
            drop(lock);
            self.repository.expect(&self.commit, &listed)?;
        }
        (self.events)(Event::Done(&listed.file));
        Ok(())
    }

    /// Waits until no other program loads a file.
    async fn lock(&self, listed: &ListedFile) -> Result<Lock, HubError> {
        let on_wait = |wait: Wait<'_>| {
            let file = &listed.file;
            let text = match wait {
                Wait::ForAnother => {
                    format!("Another program is loading {file}; waiting until it is there.")
                }
                Wait::ForNothing(_) if self.without_locks.swap(true, Ordering::Relaxed) => return,
                Wait::ForNothing(error) => format!(
                    "Note: the file system of {} gives no locks ({error}): programs that load \
                     the same model at once load it each.",
                    self.settings.cache.display()
                ),
            };
            (self.events)(Event::Note(&text));
        };
        let stall = self.settings.limits.lock;
        let blob = self.repository.blob(&listed.etag);
        let came = move || bytes_of_parts(&blob);
        self.repository.lock(listed, stall, came, &on_wait).await
    }

    /// Opens the part of a file that is there. `None` if the whole file is there: another
    /// program has loaded it meanwhile, or another version of the model has it too.
    fn open(&self, listed: &ListedFile) -> Result<Option<Part>, HubError> {
        let blob = self.repository.blob(&listed.etag);
        if is_file_of(&blob, listed.size) {
            self.repository.link(&self.commit, listed)?;
            if self.repository.has(&self.commit, listed) {
                return Ok(None);
            }
            // The blob can't be read: the loaded file takes its place.
        }
        Part::open(&blob, listed).map(Some)
    }

    /// Loads the rest, and compares the whole with its hash. If the hash is wrong, loads the
    /// file once more from its beginning.
    async fn fill(&self, mut part: Part, listed: &ListedFile) -> Result<(), HubError> {
        let context = self.context.for_file(&listed.file);
        let limits = self.settings.limits;
        let mut retries = Retries::new(limits, &self.events);
        let mut was_damaged = false;
        loop {
            self.tell(&part, listed);
            if part.is_whole() {
                let Some(why) = part.damage() else {
                    return part.complete(&self.repository.blob(&listed.etag));
                };
                part.clear()?;
                if std::mem::replace(&mut was_damaged, true) {
                    return Err(HubError::Damaged {
                        name: context.name,
                        file: listed.file.clone(),
                        why,
                    });
                }
            }
            if part.begun_anew() > limits.attempts {
                let why = format!("it had to begin anew {} times", part.begun_anew());
                return Err(context.unreachable(&why));
            }
            let before = (part.begun_anew(), part.length());
            let failure = match self.stream(&mut part, listed).await? {
                Ok(()) if part.is_whole() => continue,
                Ok(()) => Failure::Broken("the answer ends too early".into()),
                Err(failure) => failure,
            };
            // A file that begins anew is no progress: it may do so for ever.
            let (anew, length) = before;
            if part.begun_anew() == anew && part.length() >= length + limits.least {
                retries.advanced();
            }
            retries.after(failure, &context).await?;
        }
    }

    /// Appends the bytes of one answer.
    async fn stream(
        &self,
        part: &mut Part,
        listed: &ListedFile,
    ) -> Result<Result<(), Failure>, HubError> {
        let address = format!(
            "{}/{}/resolve/{}/{}",
            self.settings.endpoint, self.context.name, self.commit, listed.file
        );
        let answer = match self.client.get(&address, part.length()).await {
            Ok(answer) => answer,
            Err(Failure::Status(refusal))
                if refusal.status == StatusCode::RANGE_NOT_SATISFIABLE =>
            {
                part.clear()?;
                return Ok(Err(Failure::Broken("the rest is refused".into())));
            }
            Err(failure) => return Ok(Err(failure)),
        };
        match begins_at(&answer, part.length(), listed.size) {
            Ok(begin) if begin == part.length() => {}
            // The server that answers does not support ranges.
            Ok(_) => part.clear()?,
            Err(failure) => return Ok(Err(failure)),
        }
        let mut body = self.client.body(answer);
        loop {
            let piece = match body.next().await {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(Ok(())),
                Err(failure) => return Ok(Err(failure)),
            };
            if part.length() + piece.len() as u64 > listed.size {
                part.clear()?;
                let why = format!("it has more than its {} bytes", listed.size);
                return Ok(Err(Failure::Broken(why)));
            }
            part.push(&piece)?;
            self.tell(part, listed);
        }
    }

    fn tell(&self, part: &Part, listed: &ListedFile) {
        (self.events)(Event::At {
            file: &listed.file,
            done: part.length(),
            size: listed.size,
        });
    }
}

/// Number of the byte that the answer begins with. The request was for a file of `size` from
/// byte `first` on.
fn begins_at<B>(answer: &Response<B>, first: u64, size: u64) -> Result<u64, Failure> {
    let text = |name| {
        answer
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    if answer.status() == StatusCode::PARTIAL_CONTENT {
        let rest = format!("bytes {first}-{}/{size}", size.saturating_sub(1));
        return match text(CONTENT_RANGE) {
            Some(range) if range == rest => Ok(first),
            range => Err(Failure::Broken(format!(
                "asked for {rest}, it answers {}",
                range.unwrap_or("an unknown part")
            ))),
        };
    }
    match text(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok()) {
        Some(length) if length != size => Err(Failure::Broken(format!(
            "the answer has {length} bytes instead of {size}"
        ))),
        _ => Ok(0),
    }
}
