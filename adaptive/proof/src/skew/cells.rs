//! Cells: loads that lie unevenly on DP ranks.

use super::{group::Load, request::Text};

/// Phases of one kind of load, one after the other without a pause.
pub struct Cell {
    pub name: &'static str,
    /// By phase, the load of every DP rank.
    pub phases: Vec<Vec<Load>>,
    /// True if the group fails and begins anew in every phase.
    pub fails: bool,
}

const fn load(text: Text, streams: u32) -> Load {
    Load {
        text,
        streams,
        prompt: 16,
        tokens: (80, 160),
    }
}

/// Returns true for half of the ranks.
fn half(rank: usize) -> bool {
    rank.is_multiple_of(2)
}

/// Returns all cells for `dp_size` DP ranks.
pub fn all(dp_size: usize) -> Vec<Cell> {
    use Text::{Code, Hard, Mixed, Predictable};
    let everywhere = |of: &dyn Fn(usize) -> Load| (0..dp_size).map(of).collect::<Vec<_>>();
    let phases = |of: &[&dyn Fn(usize) -> Load]| of.iter().map(|of| everywhere(*of)).collect();
    let cell = |name, of: &[&dyn Fn(usize) -> Load]| Cell {
        name,
        phases: phases(of),
        fails: false,
    };
    let hot = |text| move |rank| load(text, if rank == 0 { 24 } else { 2 });
    let halves =
        |one, other, streams| move |rank| load(if half(rank) { one } else { other }, streams);
    let some =
        |text, busy: fn(usize) -> bool| move |rank| load(text, if busy(rank) { 4 } else { 0 });
    let storm_on = |busy: fn(usize) -> bool| {
        move |rank| Load {
            prompt: if busy(rank) { 700 } else { 16 },
            tokens: if busy(rank) { (8, 24) } else { (80, 160) },
            ..load(Mixed, 4)
        }
    };
    let storm = storm_on(half);
    let one_storms = storm_on(|rank| rank == 0);
    let most_storm = storm_on(|rank| rank % 4 != 3);
    let balanced: [&dyn Fn(usize) -> Load; 4] = [
        &|_| load(Predictable, 2),
        &|_| load(Hard, 4),
        &|_| load(Code, 4),
        &|_| load(Mixed, 8),
    ];
    vec![
        cell("balanced", &balanced),
        cell(
            "one hot rank, 12 times",
            &[&hot(Mixed), &hot(Predictable), &hot(Code)],
        ),
        cell(
            "half predictable, half hard",
            &[&halves(Predictable, Hard, 2), &halves(Hard, Predictable, 6)],
        ),
        cell(
            "idle ranks",
            &[
                &some(Mixed, half),
                &some(Predictable, |rank| !half(rank)),
                &some(Code, |rank| rank == 0),
            ],
        ),
        cell("prefill storms", &[&storm, &|_| load(Mixed, 4), &storm]),
        cell("one rank's prompts", &[&one_storms, &|_| load(Mixed, 4)]),
        cell("most ranks' prompts", &[&most_storm, &|_| load(Mixed, 4)]),
        cell(
            "bursts",
            &[
                &|_| load(Code, 1),
                &|_| load(Mixed, 16),
                &|_| load(Code, 1),
                &|_| load(Mixed, 16),
            ],
        ),
        Cell {
            fails: true,
            ..cell("failures", &balanced)
        },
    ]
}
