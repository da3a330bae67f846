//! Pearson's test of goodness of fit.

use crate::{
    schemes::Scheme,
    toy::{Case, LEN},
};

/// Least expected count of a cell. Texts with smaller expected counts share one.
const LEAST: f64 = 8.0;

/// Result of comparing counts with a law.
#[derive(Debug)]
pub struct Fit {
    chi2: f64,
    bound: f64,
    /// Number of texts that can't occur.
    impossible: u64,
}

impl Fit {
    /// Compares the first tokens of `texts` texts with their law.
    pub fn of(case: &Case, scheme: &mut dyn Scheme, texts: u64) -> Self {
        let law = case.law();
        let mut counts = vec![0u64; law.len()];
        for seed in 0..texts {
            let text = scheme.text(case, seed);
            let cell = text[..LEN]
                .iter()
                .fold(0, |cell, token| cell * case.vocab + *token as usize);
            counts[cell] += 1;
        }
        Self::new(&law, &counts, texts as f64)
    }

    fn new(law: &[f64], counts: &[u64], texts: f64) -> Self {
        let (mut chi2, mut cells, mut impossible) = (0.0, 0.0, 0);
        let mut rare = (0.0, 0.0);
        let mut add = |expected: f64, count: f64| {
            chi2 += (count - expected).powi(2) / expected;
            cells += 1.0;
        };
        for (p, count) in law.iter().zip(counts) {
            let (expected, count) = (p * texts, *count);
            if expected == 0.0 {
                impossible += count;
            } else if expected < LEAST {
                rare = (rare.0 + expected, rare.1 + count as f64);
            } else {
                add(expected, count as f64);
            }
        }
        if rare.0 >= LEAST {
            add(rare.0, rare.1);
        } else {
            // There are too few for a cell, but many times too many would still be an error.
            impossible += u64::from(rare.1 > 60.0);
        }
        Self {
            chi2,
            bound: upper_point(cells - 1.0),
            impossible,
        }
    }

    pub fn fits(&self) -> bool {
        self.chi2 < self.bound && self.impossible == 0
    }
}

/// The point that χ² exceeds with probability 10⁻⁸ (Wilson and Hilferty, 1931).
fn upper_point(degrees: f64) -> f64 {
    const NORMAL: f64 = 5.612;
    let degrees = degrees.max(1.0);
    let spread = 2.0 / (9.0 * degrees);
    degrees * (1.0 - spread + NORMAL * spread.sqrt()).powi(3)
}

/// Compares with the exact points for even degrees, where the tail is a finite sum.
#[test]
fn upper_points() {
    for (degrees, exact) in [(10.0, 57.66), (100.0, 200.63), (200.0, 333.26)] {
        let ours = upper_point(degrees);
        assert!((exact..1.05 * exact).contains(&ours), "{degrees}: {ours}");
    }
}
