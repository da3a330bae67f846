//! Speed of reading memory.

use std::fmt;
use std::hint::black_box;

use lockstep_backend::BackendError;

use super::ways::{Line, TRIALS, fastest, touch};
use super::{Clock, Measured, PIECES};
use crate::memory::Buffer;
use crate::partition::share;
use crate::pool::Pool;
use crate::prefetch::{far, near};

/// A way of reading.
#[derive(Clone, Copy)]
struct Way {
    /// Places that a thread reads from in turn. Each of the hardware's prefetchers follows
    /// one stream within a page, so more places put more of them to work.
    streams: usize,
    /// Lines read at one place before the next one's turn.
    turn: usize,
    prefetch: Prefetch,
}

/// Software prefetch of a line, this number of lines ahead of its use.
#[derive(Clone, Copy)]
enum Prefetch {
    None,
    L1(usize),
    L2(usize),
}

const fn way(streams: usize, turn: usize, prefetch: Prefetch) -> Way {
    Way {
        streams,
        turn,
        prefetch,
    }
}

const WAYS: [Way; 16] = [
    way(1, 8, Prefetch::None),
    way(1, 8, Prefetch::L1(32)),
    way(1, 8, Prefetch::L1(64)),
    way(1, 8, Prefetch::L2(64)),
    way(1, 8, Prefetch::L2(256)),
    way(4, 4, Prefetch::None),
    way(4, 4, Prefetch::L1(32)),
    way(4, 4, Prefetch::L1(64)),
    way(4, 4, Prefetch::L2(64)),
    way(8, 4, Prefetch::None),
    way(8, 64, Prefetch::None),
    way(8, 4, Prefetch::L1(8)),
    way(8, 4, Prefetch::L1(16)),
    way(8, 4, Prefetch::L2(32)),
    way(16, 4, Prefetch::None),
    way(16, 4, Prefetch::L2(32)),
];

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.streams {
            1 => write!(f, "1 stream per thread")?,
            streams => write!(f, "{streams} streams per thread, {} B each", 64 * self.turn)?,
        }
        match self.prefetch {
            Prefetch::None => Ok(()),
            Prefetch::L1(lines) => write!(f, ", prefetch to L1 {} B ahead", 64 * lines),
            Prefetch::L2(lines) => write!(f, ", prefetch to L2 {} B ahead", 64 * lines),
        }
    }
}

pub(super) fn bandwidth(
    pool: &mut Pool,
    clock: Clock,
    bytes: usize,
) -> Result<Measured, BackendError> {
    let mut memory = Buffer::<Line>::zeroed(bytes.div_ceil(64).max(TRIALS), "measuring memory")?;
    touch(pool, &mut memory);
    Ok(fastest(&WAYS, memory.len(), |way, part| {
        let lines = &memory[part];
        let start = clock.seconds();
        let pieces = pool.threads() * PIECES;
        pool.for_chunks(pieces, |_, piece| {
            black_box(fold(&lines[share(lines.len(), pieces, piece)], way));
        });
        size_of_val(lines) as f64 / (clock.seconds() - start).max(1e-9)
    }))
}

/// Reads every line once; returns the exclusive or of their first words.
fn fold(lines: &[Line], way: Way) -> u64 {
    let Way {
        streams,
        turn,
        prefetch,
    } = way;
    match prefetch {
        Prefetch::None => go_through(lines, streams, turn, |_| {}),
        Prefetch::L1(ahead) => go_through(lines, streams, turn, |line| {
            near(line.wrapping_add(ahead));
        }),
        Prefetch::L2(ahead) => go_through(lines, streams, turn, |line| {
            far(line.wrapping_add(ahead));
        }),
    }
}

/// Lines between two checks of anything else. The fewer instructions a line takes, the more
/// lines a core waits for at once: a core has room for a limited number of unfinished
/// instructions. With more instructions this room would be the limit, not the memory.
const UNROLLED: usize = 4;

#[inline(always)]
fn go_through(lines: &[Line], streams: usize, turn: usize, prefetch: impl Fn(*const Line)) -> u64 {
    let mut sums = [0; UNROLLED];
    let each = lines.len() / streams;
    let mut at = 0;
    while at < each {
        let end = each.min(at + turn);
        for stream in 0..streams {
            let part = &lines[stream * each + at..stream * each + end];
            let (parts, rest) = part.as_chunks::<UNROLLED>();
            for part in parts {
                for (sum, line) in sums.iter_mut().zip(part) {
                    prefetch(line);
                    *sum ^= bring(line);
                }
            }
            rest.iter().for_each(|line| sums[0] ^= bring(line));
        }
        at = end;
    }
    // The lines that do not divide among the streams.
    let rest = &lines[each * streams..];
    rest.iter().for_each(|line| sums[0] ^= bring(line));
    sums.into_iter().fold(0, |all, sum| all ^ sum)
}

/// Loads one word, with which the whole line comes from memory. The load is volatile:
/// otherwise the compiler would put words of several lines into vectors, with many
/// instructions a line.
#[inline(always)]
fn bring(line: &Line) -> u64 {
    // SAFETY: the reference is valid.
    unsafe { std::ptr::from_ref(&line[0]).read_volatile() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_reads_every_line_once() {
        for count in [0, 1, 7, 16, 63, 64, 1000, 4099] {
            let value = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let lines: Vec<Line> = (0..count)
                .map(|i: u64| std::array::from_fn(|lane| value(8 * i + lane as u64 + 1)))
                .collect();
            let wanted = lines.iter().fold(0, |all, line| all ^ line[0]);
            for way in WAYS {
                assert_eq!(fold(&lines, way), wanted, "{way}, {count} lines");
            }
        }
    }
}
