//! Speed of reading and writing memory at once.

use std::fmt;

use lockstep_backend::BackendError;

use super::ways::{Line, TRIALS, fastest, touch};
use super::{Clock, Measured, PIECES};
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::multiversion::multiversion;
use crate::partition::{Shared, share};
use crate::pool::Pool;

/// A way of writing as many bytes as are read.
#[derive(Clone, Copy)]
enum Way {
    /// Every line is changed in place, from this number of places in turn.
    InPlace(usize),
    /// One half of the memory is copied over the other by the system's own
    /// routine, which may write past the caches.
    Copy,
}

const WAYS: [Way; 4] = [Way::InPlace(1), Way::InPlace(4), Way::InPlace(8), Way::Copy];

/// Lines changed at one place before the next one's turn.
const TURN: usize = 8;

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InPlace(1) => f.write_str("in place, 1 stream per thread"),
            Self::InPlace(streams) => write!(f, "in place, {streams} streams per thread"),
            Self::Copy => f.write_str("copy"),
        }
    }
}

pub(super) fn bandwidth(
    pool: &mut Pool,
    clock: Clock,
    bytes: usize,
) -> Result<Measured, BackendError> {
    let lines = bytes.div_ceil(64).max(TRIALS);
    let mut memory = Buffer::<Line>::zeroed(lines, "measuring memory")?;
    touch(pool, &mut memory);
    let isa = Isa::widest();
    let pieces = pool.threads() * PIECES;
    Ok(fastest(&WAYS, lines, |way, part| {
        let part = Shared::new(&mut memory[part]);
        let start = clock.seconds();
        pool.for_chunks(pieces, |_, piece| {
            // SAFETY: pieces are disjoint.
            go(
                isa,
                unsafe { part.slice(share(part.len(), pieces, piece)) },
                way,
            );
        });
        // In place, each byte is read and written. In a copy, half of the bytes are read and
        // the other half are written.
        let moved = match way {
            Way::InPlace(_) => 2 * 64 * part.len(),
            Way::Copy => 64 * part.len(),
        };
        moved as f64 / (clock.seconds() - start).max(1e-9)
    }))
}

fn go(isa: Isa, lines: &mut [Line], way: Way) {
    match way {
        Way::InPlace(streams) => change(isa, lines, streams),
        Way::Copy => {
            let (to, from) = lines.split_at_mut(lines.len() / 2);
            to.copy_from_slice(&from[..to.len()]);
        }
    }
}

multiversion! {
    /// Changes every line once.
    fn change(lines: &mut [Line], streams: usize) {
        let each = lines.len() / streams;
        let mut at = 0;
        while at < each {
            let end = each.min(at + TURN);
            for stream in 0..streams {
                for line in &mut lines[stream * each + at..stream * each + end] {
                    line.iter_mut().for_each(|x| *x = x.wrapping_add(1));
                }
            }
            at = end;
        }
        // The lines that do not divide among the streams.
        for line in &mut lines[each * streams..] {
            line.iter_mut().for_each(|x| *x = x.wrapping_add(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_changed_once() {
        for count in [0, 1, 7, 8, 64, 1000, 4099] {
            let before: Vec<Line> = (0..count).map(|i: u64| [i; 8]).collect();
            for isa in Isa::available() {
                for streams in [1, 4, 8] {
                    let mut after = before.clone();
                    change(isa, &mut after, streams);
                    let changed = |(a, b): (&Line, &Line)| *b == a.map(|x| x + 1);
                    assert!(before.iter().zip(&after).all(changed), "{isa}, {streams}");
                }
            }
        }
    }
}
