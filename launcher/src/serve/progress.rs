//! Progress of a start: bars on a terminal, lines elsewhere.

use std::collections::BTreeMap;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use lockstep_process::Role;

use crate::console::{self, Console};

/// One bar per role that reports progress.
pub(super) struct Progress {
    bars: Option<MultiProgress>,
    roles: BTreeMap<Role, (String, ProgressBar)>,
}

impl Progress {
    /// A display that is empty until progress is reported. If no bars can be drawn, it stays
    /// empty: the roles' own log lines show the progress.
    pub(super) fn new(console: &Console) -> Self {
        let bars = console::draws().then(|| console.bars().clone());
        Self {
            bars,
            roles: BTreeMap::new(),
        }
    }

    /// Shows that `role` has done `done` of `total` in `phase`.
    pub(super) fn update(&mut self, role: Role, phase: &str, done: u64, total: u64) {
        let Some(bars) = &self.bars else {
            let known = self
                .roles
                .get(&role)
                .is_some_and(|(ended, _)| ended == phase);
            if done >= total && !known {
                tracing::info!("{role}: {phase}: done");
                self.roles
                    .insert(role, (phase.to_owned(), ProgressBar::hidden()));
            }
            return;
        };
        let (shown, bar) = self.roles.entry(role).or_insert_with(|| {
            let bar = bars.add(ProgressBar::new(total)).with_style(style());
            bar.set_prefix(role.to_string());
            (String::new(), bar)
        });
        if shown != phase {
            phase.clone_into(shown);
            bar.set_message(phase.to_owned());
        }
        bar.set_length(total);
        bar.set_position(done);
    }

    /// Marks that `role` serves.
    pub(super) fn done(&mut self, role: Role) {
        if let Some((_, bar)) = self.roles.get(&role) {
            bar.set_message("ready");
        }
    }

    /// Removes the bars.
    pub(super) fn finish(self) {
        for (_, bar) in self.roles.into_values() {
            bar.finish_and_clear();
        }
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("  {prefix:<10} {bar:32} {percent:>3}%  {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
