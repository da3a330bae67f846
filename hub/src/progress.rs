//! Events while models are loaded, and their display on a terminal.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use lockstep_files::{shown, shown_note};

/// An event while a model is loaded.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// A text to read: files and their source, or a reason why nothing is loaded.
    Note(&'a str),
    /// Progress of a file.
    At {
        /// The file.
        file: &'a str,
        /// Bytes that are there.
        done: u64,
        /// Bytes in all.
        size: u64,
    },
    /// A file is complete.
    Done(&'a str),
}

/// Receiver of events.
pub(crate) type EventSink = Arc<dyn Fn(Event<'_>) + Send + Sync>;

/// Passes events on to `events` with texts that terminals and logs may safely show. File names and
/// parts of notes come from the hub, and so from strangers.
pub(crate) fn plainly(events: impl Fn(Event<'_>) + Send + Sync + 'static) -> EventSink {
    Arc::new(move |event| match event {
        Event::Note(text) => events(Event::Note(&shown_note(text))),
        Event::At { file, done, size } => {
            let file = &shown(file);
            events(Event::At { file, done, size });
        }
        Event::Done(file) => events(Event::Done(&shown(file))),
    })
}

/// Bars at the bottom of the terminal: bytes, rate and the time left of each file, until it
/// is complete. If stderr is no terminal, only notes are printed.
pub fn bars() -> impl Fn(Event<'_>) + Send + Sync {
    const LOOK: &str =
        "  {prefix:<34!} {bar:24} {bytes:>10} of {total_bytes:<10} {bytes_per_sec:>12}  {eta} left";
    let style = ProgressStyle::with_template(LOOK);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    let all = MultiProgress::new();
    let files: Mutex<BTreeMap<String, ProgressBar>> = Mutex::default();
    move |event| {
        let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Note(text) => note(&all, text),
            Event::At { file, done, size } => {
                if let Some(bar) = files.get(file) {
                    bar.set_position(done);
                    return;
                }
                let bar = ProgressBar::new(size).with_position(done);
                let bar = all.add(bar.with_style(style.clone()).with_prefix(file.to_owned()));
                // Bytes that were there before say nothing of the rate.
                bar.reset_eta();
                files.insert(file.to_owned(), bar);
            }
            Event::Done(file) => {
                if let Some(bar) = files.remove(file) {
                    bar.finish_and_clear();
                    all.remove(&bar);
                }
            }
        }
    }
}

fn note(all: &MultiProgress, text: &str) {
    all.suspend(|| {
        let line = format!("{text}\n");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_notes_are_told_in_one_line_without_orders_to_the_terminal() {
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let hears = heard.clone();
        let events = plainly(move |event| {
            let (Event::Note(text) | Event::Done(text) | Event::At { file: text, .. }) = event;
            hears.lock().expect("no panic").push(text.to_owned());
        });
        let name = "a\u{1b}[2J\n\u{202e}b";
        events(Event::Note(name));
        events(Event::At {
            file: name,
            done: 1,
            size: 2,
        });
        events(Event::Done(name));
        let heard = heard.lock().expect("no panic");
        assert_eq!(*heard, ["a\\u{1b}[2J\\n\\u{202e}b"; 3]);
    }
}
