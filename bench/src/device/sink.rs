//! Figures as JSON lines, each written when it is there, so that a run that is ended has left
//! what it had.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use serde_json::{Value, json};

/// A file of lines, or nothing.
pub struct Sink {
    file: Option<File>,
    begun: Instant,
}

impl Sink {
    /// Opens `path`, to append to what is there.
    ///
    /// # Errors
    /// Fails when the file can't be written.
    pub fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let open = |path: &Path| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.with_context(|| format!("writing {}", path.display()))
        };
        Ok(Self {
            file: path.map(open).transpose()?,
            begun: Instant::now(),
        })
    }

    /// Appends a figure of `part`, with the seconds since the start.
    ///
    /// # Errors
    /// Fails when the file can't be written.
    pub fn write(&mut self, part: &str, mut figure: Value) -> anyhow::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        figure["part"] = json!(part);
        figure["at s"] = json!(self.begun.elapsed().as_secs_f64());
        // One call for a line, so that a line is whole or not there.
        let line = format!("{figure}\n");
        file.write_all(line.as_bytes()).context("writing a figure")
    }
}
