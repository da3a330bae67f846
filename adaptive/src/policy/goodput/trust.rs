//! Comparison of a depth's results with its expectations.

use super::logit::ONE;
use crate::{Digest, POSITIONS};

/// Least number of steps of a depth that are judged together.
const WINDOW: u32 = 96;
/// Least expected microseconds of these steps.
const WINDOW_US: u64 = 4_000_000;
/// Least steps and microseconds of a piece of a window. A window's time is that of its fastest
/// piece, because other programs slow a machine for a part of a window.
const PIECE: u32 = 16;
const PIECE_US: u64 = 200_000;
/// Windows in a row that must fall short. Expectations follow a change of texts within tens of
/// steps, so such a change affects two windows at most.
const WINDOWS: u32 = 3;
/// Part of the expected time below which the time alone is believed after one window. Only the
/// step's size should change its time, and the size is known.
const FAR_SHORT: i64 = ONE * 85 / 100;
/// Steps after which an old judgement of an idle depth is forgotten, and expected microseconds
/// of these steps.
const FORGOTTEN: u64 = 4096;
const FORGOTTEN_US: u64 = 10 * WINDOW_US;
/// Part of the expectations below which a depth is judged by its results.
const KEPT: i64 = ONE * 97 / 100;
/// Least factor of a depth.
const LEAST: i64 = ONE / 2;

/// For every depth, realised over expected tokens per time, over long windows.
#[derive(Debug)]
pub(super) struct Trust {
    depths: [Record; POSITIONS + 1],
    /// Expected microseconds of all steps so far.
    clock_us: u64,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    /// Factor for the depth's expectations, in fixed point.
    factor: i64,
    /// Number of the step of the last judgement, and its time.
    judged: u64,
    judged_us: u64,
    /// Number of windows in a row that fell short.
    short: u32,
    steps: u32,
    tokens: u64,
    expected_tokens: u64,
    size_us: u64,
    expected_us: u64,
    /// Steps of the present piece, their microseconds, and the expected microseconds for their
    /// sizes. `best` is the ratio of expected to real microseconds in the fastest piece, in
    /// fixed point.
    piece: (u32, u64, u64),
    best: i64,
}

/// A step's results and expectations: tokens of a row, in fixed point, and microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Judged {
    pub tokens: u64,
    pub expected_tokens: u64,
    pub us: u64,
    /// Expected microseconds for a step of its size.
    pub size_us: u64,
    /// Expected microseconds for a step of its depth.
    pub expected_us: u64,
}

impl Record {
    const NEW: Self = Self {
        factor: ONE,
        judged: 0,
        judged_us: 0,
        short: 0,
        steps: 0,
        tokens: 0,
        expected_tokens: 0,
        size_us: 0,
        expected_us: 0,
        piece: (0, 0, 0),
        best: 0,
    };

    /// Adds one step.
    fn add(&mut self, step: Judged) {
        self.steps += 1;
        self.tokens += step.tokens;
        self.expected_tokens += step.expected_tokens;
        self.size_us += step.size_us;
        self.expected_us += step.expected_us;
        let (steps, us, size_us) = &mut self.piece;
        *steps += 1;
        // An outlier counts for at most two steps.
        *us += step.us.min(2 * step.size_us);
        *size_us += step.size_us;
        if *steps >= PIECE && *size_us >= PIECE_US {
            self.best = self.best.max(part(*size_us, *us));
            self.piece = (0, 0, 0);
        }
    }

    /// Judges the depth at the end of a window.
    fn judge(&mut self, step: u64, clock_us: u64) {
        let by_time = self.best.min(ONE);
        let by_size = part(self.expected_us, self.size_us);
        let by_tokens = part(self.tokens, self.expected_tokens);
        let rate = by_tokens.saturating_mul(by_size) / ONE * by_time / ONE;
        let short = if rate < KEPT { self.short + 1 } else { 0 };
        let factor = match (short, by_time) {
            (0, _) => ONE,
            (WINDOWS.., _) => rate.max(LEAST),
            (_, by_time) if by_time < FAR_SHORT => by_time.max(LEAST),
            _ => self.factor,
        };
        *self = Self {
            factor,
            judged: step,
            judged_us: clock_us,
            short,
            ..Self::NEW
        };
    }
}

/// Returns `real` over `expected`, in fixed point.
fn part(real: u64, expected: u64) -> i64 {
    let part = (u128::from(real) << 16) / u128::from(expected.max(1));
    i64::try_from(part).unwrap_or(ONE)
}

impl Trust {
    pub fn new() -> Self {
        Self {
            depths: [Record::NEW; POSITIONS + 1],
            clock_us: 0,
        }
    }

    /// Returns the worth of an expectation of `depth`, in 65,536ths.
    pub fn factor(&self, depth: u32) -> i64 {
        self.depths
            .get(depth as usize)
            .map_or(ONE, |record| record.factor)
    }

    /// Takes in a step at `depth` that carried no prompts.
    pub fn observe(&mut self, step: u64, depth: u32, judged: Judged) {
        self.clock_us = self.clock_us.saturating_add(judged.expected_us);
        for record in &mut self.depths {
            let old = step.saturating_sub(record.judged) > FORGOTTEN
                && self.clock_us - record.judged_us > FORGOTTEN_US;
            if record.factor < ONE && old {
                *record = Record::NEW;
            }
        }
        let Some(record) = self.depths.get_mut(depth as usize) else {
            return;
        };
        record.add(judged);
        if record.steps >= WINDOW && record.expected_us >= WINDOW_US {
            record.judge(step, self.clock_us);
        }
    }

    pub fn digest(&self, digest: &mut Digest) {
        digest.word(self.clock_us);
        for record in &self.depths {
            digest.word(record.factor as u64);
            digest.word(record.judged);
            digest.word(record.judged_us);
            digest.word(u64::from(record.steps) << 32 | u64::from(record.short));
            let (steps, us, size_us) = record.piece;
            let sums = [
                record.tokens,
                record.expected_tokens,
                record.size_us,
                record.expected_us,
                u64::from(steps),
                us,
                size_us,
                record.best as u64,
            ];
            sums.into_iter().for_each(|sum| digest.word(sum));
        }
    }
}
