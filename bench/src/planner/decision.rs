//! Time that a rank takes to decide how deep to draft. The time includes the conversion of
//! its row to words and back, but not the exchange.

use std::time::Instant;

use lockstep_adaptive::{
    AdaptiveConfig, BatchSlot, Decider, DepthRange, Digest, Policies, Row, Seen, Tier,
};
use serde_json::json;

use crate::{report::Table, stats::Durations};

const DEPTHS: [u32; 6] = [0, 1, 2, 3, 5, 7];
const RANKS: [usize; 4] = [1, 2, 4, 8];
/// Most rows that decode.
const ROWS: u32 = 32;

/// Measures every policy, at several numbers of ranks.
pub fn table(steps: u32) -> anyhow::Result<Table> {
    let columns = ["policy", "ranks", "steps", "p50 us", "p99 us"];
    let mut table = Table::new("Deciding the depth of drafts", &columns);
    let policies = Policies::builtin();
    for policy in policies.iter() {
        for ranks in RANKS {
            let took = measure(policy.name(), &policies, ranks, steps)?;
            table.row(vec![
                json!(policy.name()),
                json!(ranks),
                json!(took.count()),
                took.us(50.0),
                took.us(99.0),
            ]);
        }
    }
    Ok(table)
}

fn measure(policy: &str, known: &Policies, ranks: usize, steps: u32) -> anyhow::Result<Durations> {
    let tiers = DEPTHS.map(|depth| Tier {
        depth,
        tokens: depth + 1,
    });
    let slots = vec![BatchSlot::new(1, DEPTHS.to_vec())];
    let config = AdaptiveConfig::new(policy, 3, tiers.to_vec(), slots);
    let sizes = (0..=ROWS.ilog2()).map(|power| 1 << power);
    let profile = sizes.flat_map(|rows| [0, 1, 2, 7].map(|depth| made_up(rows, depth, 0)));
    let mut decider = Decider::new(&config, known, &profile.collect::<Vec<_>>())?;
    let mut seen = Seen::default();
    let mut rows = Vec::with_capacity(ranks);
    let mut took = Durations::default();
    let warm_up = steps / 10;
    for step in 1..=steps + warm_up {
        let start = Instant::now();
        let depth = decider.depth();
        decider.begin();
        let mut digest = Digest::new();
        digest.word(decider.digest());
        let decodes = 1 + step / 500 % ROWS;
        let own = Row {
            step: step.into(),
            depth,
            digest: digest.value(),
            depths: config.depths(),
            decodes,
            joined: u32::from(step % 7 == 0),
            seen,
            ..Row::default()
        };
        let words = own.to_words();
        rows.clear();
        rows.extend((0..ranks).map(|_| Row::from_words(&words)));
        decider.decide(&rows, DepthRange::default());
        let decided = start.elapsed();
        seen = made_up(decodes, depth, step);
        if step > warm_up {
            took.record(decided);
        }
    }
    Ok(took)
}

/// Made-up figures of a step of `rows` rows.
fn made_up(rows: u32, depth: u32, step: u32) -> Seen {
    let mut seen = Seen {
        depth,
        decodes: rows,
        tokens: rows * (depth + 1),
        draft_us: 500 * depth + step % 97,
        verify_us: 20_000 + 900 * rows * (depth + 1) + step % 997,
        ..Seen::default()
    };
    for row in 0..rows {
        seen.count(depth, (step + row) % (depth + 1));
    }
    seen
}
