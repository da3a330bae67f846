//! Log lines on stderr, each with the role that wrote it. Logging never waits for the reader:
//! see [`LineQueue`].

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::OnceLock;
use std::time::Duration;

use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

mod queue;

pub use queue::LineQueue;

/// Time that the last lines of an ending process get to be read.
pub const LAST_WORDS: Duration = Duration::from_millis(500);

static STDERR: OnceLock<LineQueue> = OnceLock::new();

/// The queue of this process's stderr, started by its first use. All other output to stderr
/// goes through it as well; otherwise it would wait for the reader.
pub fn stderr() -> &'static LineQueue {
    // A handle of its own, so that a stuck writer holds no lock.
    let handle = || io::stderr().as_fd().try_clone_to_owned().map(File::from);
    STDERR.get_or_init(|| match handle() {
        Ok(file) => LineQueue::start("log", file),
        Err(_) => LineQueue::start("log", io::stderr()),
    })
}

/// Returns true if this process uses [`stderr`].
pub fn started() -> bool {
    STDERR.get().is_some()
}

/// Number of lines that this process lost because nobody read them in time.
pub fn lost_lines() -> u64 {
    STDERR.get().map_or(0, LineQueue::lost)
}

/// Gives the last lines of a process that logs [`LAST_WORDS`] to be read.
pub fn finish() {
    if let Some(queue) = STDERR.get() {
        queue.flush(LAST_WORDS);
    }
}

/// Makes panics log lines. The default hook would write to stderr directly, and wait there.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        let trace = Backtrace::capture();
        if trace.status() == BacktraceStatus::Captured {
            tracing::error!("thread '{name}' {panic}\n{trace}");
        } else {
            tracing::error!("thread '{name}' {panic}");
        }
    }));
}

/// Starts logging in this process. `filter` is in `RUST_LOG`'s form; a filter that does not
/// parse falls back to `info` (the configuration has checked it). Request ids across processes
/// come from the spans of callers, as fields like any other. A second call changes nothing.
pub fn init(role: &str, filter: &str, json: bool) {
    let filter = EnvFilter::try_new(capped(filter)).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        // Internal errors would go to stderr directly, and wait there or panic.
        .log_internal_errors(false);
    let result = if json {
        let writer = JsonRole::over(role, Queued(stderr()));
        builder
            .json()
            .flatten_event(true)
            .with_writer(writer)
            .try_init()
    } else {
        builder
            .with_timer(RoleTime(role.to_owned()))
            .with_writer(Queued(stderr()))
            .try_init()
    };
    // Fails only if logging was started before, as in a test.
    let _ = result;
}

/// Levels of logging.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Libraries that log a line or more for every frame and every wake-up.
const CHATTY: [&str; 8] = [
    "h2",
    "hyper",
    "mio",
    "reqwest",
    "rustls",
    "tokio_util",
    "tonic",
    "tower",
];

/// Adds `info` for chatty libraries that the filter does not name, if the filter's level for
/// everything is `debug` or `trace`.
fn capped(filter: &str) -> String {
    let directives = || filter.split(',').map(str::trim);
    let verbose = ["debug", "trace"];
    let mut capped = filter.to_owned();
    if directives().any(|word| verbose.contains(&word.to_ascii_lowercase().as_str())) {
        for library in CHATTY {
            if !directives().any(|directive| directive.starts_with(library)) {
                capped.push_str(&format!(",{library}=info"));
            }
        }
    }
    capped
}

/// Checks a filter before any process is started with it. A single word must be a level:
/// `RUST_LOG` takes any other word for a module's name, and then logs nothing else.
///
/// # Errors
/// A description of the problem.
pub fn check(filter: &str) -> Result<(), String> {
    for directive in filter.split(',').map(str::trim) {
        let level = |word: &str| LEVELS.contains(&word.to_ascii_lowercase().as_str());
        if !directive.contains(['=', '[']) && !level(directive) {
            let levels = LEVELS.join(", ");
            return Err(format!("`{directive}` is not a level ({levels})"));
        }
    }
    EnvFilter::builder()
        .parse(filter)
        .map(|_| ())
        .map_err(|error| error.to_string())
}

/// The time and the role in front of a plain line.
struct RoleTime(String);

impl FormatTime for RoleTime {
    fn format_time(&self, w: &mut Writer<'_>) -> std::fmt::Result {
        SystemTime.format_time(w)?;
        write!(w, " {}", self.0)
    }
}

/// Makes writers to a queue. Writers for errors are urgent.
#[derive(Clone, Copy)]
struct Queued(&'static LineQueue);

/// Writes one event.
struct QueuedEvent {
    queue: &'static LineQueue,
    urgent: bool,
}

impl MakeWriter<'_> for Queued {
    type Writer = QueuedEvent;

    fn make_writer(&self) -> QueuedEvent {
        let (queue, urgent) = (self.0, false);
        QueuedEvent { queue, urgent }
    }

    fn make_writer_for(&self, meta: &Metadata<'_>) -> QueuedEvent {
        let (queue, urgent) = (self.0, *meta.level() == Level::ERROR);
        QueuedEvent { queue, urgent }
    }
}

impl Write for QueuedEvent {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.urgent {
            true => self.queue.push_urgent(bytes),
            false => self.queue.push(bytes),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Puts `"role"` first into each JSON line; a line arrives in one write.
#[derive(Clone)]
struct JsonRole<W> {
    prefix: Vec<u8>,
    make: W,
}

impl<W> JsonRole<W> {
    fn over(role: &str, make: W) -> Self {
        let prefix = format!("{{\"role\":{},", serde_json::Value::from(role)).into_bytes();
        Self { prefix, make }
    }
}

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for JsonRole<W> {
    type Writer = PrefixOnce<'a, W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        let (prefix, writer) = (&*self.prefix, self.make.make_writer());
        PrefixOnce { prefix, writer }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Self::Writer {
        let (prefix, writer) = (&*self.prefix, self.make.make_writer_for(meta));
        PrefixOnce { prefix, writer }
    }
}

struct PrefixOnce<'a, V> {
    prefix: &'a [u8],
    writer: V,
}

impl<V: Write> Write for PrefixOnce<'_, V> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match bytes.strip_prefix(b"{") {
            Some(rest) => self.writer.write_all(&[self.prefix, rest].concat())?,
            None => self.writer.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

#[cfg(test)]
mod tests;
