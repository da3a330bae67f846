//! A row of the table of attacks on a server and their outcomes.

use std::{fs::OpenOptions, io::Write, time::Duration};

use crate::{
    innocent::{Innocent, Times},
    processes::Process,
    server::Server,
};

/// Environment variable that names a file to append rows to.
const TABLE: &str = "LOCKSTEP_EDGES_TABLE";

/// A row in progress: an innocent client sends requests meanwhile.
#[derive(Debug)]
pub struct Row {
    number: &'static str,
    innocent: Innocent,
    before: Vec<Process>,
    resident: usize,
}

impl Row {
    /// Begins a row at a server that serves.
    pub fn begin(number: &'static str, server: &Server) -> Self {
        let before = server.processes();
        before.iter().for_each(|process| process.reset_peak());
        let resident = before.iter().map(|of| of.memory("VmRSS")).sum();
        Self {
            number,
            innocent: Innocent::watch(server),
            before,
            resident,
        }
    }

    /// Ends the row. Prints the largest growth of all processes' memory, the innocent
    /// client's times, and `outcome`.
    ///
    /// # Panics
    /// Panics if any of the innocent client's requests failed, if other processes serve now,
    /// or if the row can't be printed or written into the table.
    pub async fn end(self, server: &Server, outcome: &str) -> Times {
        let times = self.innocent.end().await;
        let after = server.processes();
        let peak: usize = after.iter().map(|of| of.memory("VmHWM")).sum();
        let longest = |of: &[Duration]| {
            let longest = of.iter().max().copied().unwrap_or_default();
            format!("{:.2}", longest.as_secs_f64())
        };
        let row = format!(
            "| {} | {} | {} | {} | {} of {} | {outcome} |\n",
            self.number,
            peak.saturating_sub(self.resident) >> 20,
            longest(&times.health),
            longest(&times.chat),
            times.failed.len(),
            times.failed.len() + times.health.len() + times.chat.len(),
        );
        let head = "| # | MiB | /health, s | chat, s | refused | outcome |\n";
        let failures = times.failed.iter().take(3).map(|text| format!("{text}\n"));
        let said: String = [head, &row]
            .map(str::to_owned)
            .into_iter()
            .chain(failures)
            .collect();
        say(said.trim_end());
        if let Some(table) = std::env::var_os(TABLE) {
            let table = OpenOptions::new().create(true).append(true).open(table);
            let written = table.and_then(|mut table| table.write_all(row.as_bytes()));
            written.expect("the table can be written");
        }
        assert_eq!(after, self.before, "the same processes serve");
        assert_eq!(times.failed, Vec::<String>::new(), "refused");
        times
    }
}

/// Prints a line of a report, even in a test whose output is captured.
///
/// # Panics
/// Panics if the line cannot be printed.
pub fn say(line: &str) {
    let printed = std::io::stdout().write_all(format!("{line}\n").as_bytes());
    printed.expect("the line is printed");
}
