//! Log lines on stderr, each with the role that wrote it.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// Starts logging in this process. `filter` is in `RUST_LOG`'s form; a filter
/// that does not parse falls back to `info` (the configuration has checked it).
/// Request ids across processes come from callers' spans: they are fields like
/// any other. A second call changes nothing.
pub fn init(role: &str, filter: &str, json: bool) {
    let filter = EnvFilter::try_new(capped(filter)).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        // Stderr is a pipe to the launcher. When the launcher is gone, reporting
        // there that a line could not be written there would panic, and take
        // the client whose request was being logged with it.
        .log_internal_errors(false);
    let result = if json {
        let writer = JsonRole::new(role);
        builder
            .json()
            .flatten_event(true)
            .with_writer(writer)
            .try_init()
    } else {
        builder
            .with_timer(RoleTime(role.to_owned()))
            .with_writer(io::stderr)
            .try_init()
    };
    // Fails only when logging was started before, as in a test.
    let _ = result;
}

/// Words for how much is logged.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
/// Libraries that say a line or more for every frame and every wake-up.
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

/// The filter, with chatty libraries at `info` where a level for everything is
/// below that and the filter does not name them.
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

/// Checks a filter before anything is started with it. A lone word must be a
/// level: `RUST_LOG` takes any other for the name of a module, and then logs
/// nothing else.
///
/// # Errors
/// What is wrong with it.
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

/// Puts `"role"` first into each JSON line; a line arrives in one write.
#[derive(Clone)]
struct JsonRole<W> {
    prefix: Vec<u8>,
    make: W,
}

impl JsonRole<fn() -> io::Stderr> {
    fn new(role: &str) -> Self {
        Self::over(role, io::stderr)
    }
}

impl<W> JsonRole<W> {
    fn over(role: &str, make: W) -> Self {
        let prefix = format!("{{\"role\":{},", serde_json::Value::from(role)).into_bytes();
        Self { prefix, make }
    }
}

impl<'a, W: Fn() -> V, V: Write + 'a> MakeWriter<'a> for JsonRole<W>
where
    W: 'a,
{
    type Writer = PrefixOnce<'a, V>;

    fn make_writer(&'a self) -> Self::Writer {
        PrefixOnce {
            prefix: &self.prefix,
            writer: (self.make)(),
        }
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
