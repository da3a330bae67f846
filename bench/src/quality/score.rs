//! Differences between predictions.

/// Log-probabilities of every token after every token read.
pub struct Predictions {
    vocab: usize,
    /// `[rows, vocab]`.
    logprobs: Vec<f32>,
    /// The token that came next, for each row.
    next: Vec<u32>,
}

/// Predictions compared with the reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// e to the mean negative log-likelihood of the tokens that came.
    pub perplexity: f64,
    /// Perplexity divided by the reference's.
    pub ratio: f64,
    /// Mean Kullback-Leibler divergence from the reference, in nats.
    pub divergence: f64,
    /// The divergence of the row at the 99th percentile.
    pub worst: f64,
    /// Share of rows with the same most likely token as the reference.
    pub agreement: f64,
}

impl Predictions {
    /// No predictions yet, over a vocabulary of `vocab` tokens.
    pub fn new(vocab: usize) -> Self {
        Self {
            vocab,
            logprobs: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Adds a row of logits and the token that came next.
    pub fn add(&mut self, logits: &[f32], next: u32) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
        let norm = f64::from(max) + sum.ln();
        let row = logits.iter().map(|&x| (f64::from(x) - norm) as f32);
        self.logprobs.extend(row);
        self.next.push(next);
    }

    /// Tokens predicted.
    pub fn rows(&self) -> usize {
        self.next.len()
    }

    /// The score of `other`, with these predictions as the reference.
    pub fn against(&self, other: &Self) -> Score {
        let rows = self.rows().max(1) as f64;
        let pairs = || self.each().zip(other.each());
        let mut divergences: Vec<f64> = pairs().map(|(p, q)| divergence(p, q)).collect();
        divergences.sort_by(f64::total_cmp);
        let agreeing = pairs().filter(|(p, q)| best(p) == best(q)).count();
        let worst = divergences.len() * 99 / 100;
        let (loss, reference) = (other.loss(), self.loss());
        Score {
            perplexity: loss.exp(),
            ratio: (loss - reference).exp(),
            divergence: divergences.iter().sum::<f64>() / rows,
            worst: divergences.get(worst).copied().unwrap_or(0.0),
            agreement: agreeing as f64 / rows,
        }
    }

    fn each(&self) -> impl Iterator<Item = &[f32]> {
        self.logprobs.chunks_exact(self.vocab)
    }

    /// Mean negative log-likelihood of the tokens that came.
    fn loss(&self) -> f64 {
        let rows = self.each().zip(&self.next);
        let sum: f64 = rows
            .map(|(row, &next)| -f64::from(row[next as usize]))
            .sum();
        sum / self.rows().max(1) as f64
    }
}

/// KL(p ‖ q) of two rows of log-probabilities; at least 0 but for rounding.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let terms = p.iter().zip(q).map(|(&p, &q)| {
        let (p, q) = (f64::from(p), f64::from(q));
        if p == f64::NEG_INFINITY {
            0.0
        } else {
            p.exp() * (p - q)
        }
    });
    terms.sum()
}

fn best(row: &[f32]) -> Option<usize> {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn predictions(rows: &[(&[f32], u32)]) -> Predictions {
        let mut predictions = Predictions::new(rows[0].0.len());
        rows.iter()
            .for_each(|(row, next)| predictions.add(row, *next));
        predictions
    }

    #[test]
    fn what_is_equal_does_not_diverge() {
        let truth = predictions(&[(&[1.0, 2.0, -3.0], 1), (&[0.0, 0.0, 0.0], 2)]);
        let score = truth.against(&truth);
        assert_eq!(
            (score.divergence, score.worst, score.agreement),
            (0.0, 0.0, 1.0)
        );
        assert_eq!(score.ratio, 1.0);
        let likely = 2f64.exp() / (1f64.exp() + 2f64.exp() + (-3f64).exp());
        let expected = (-(likely.ln() + (1.0f64 / 3.0).ln()) / 2.0).exp();
        assert!((score.perplexity - expected).abs() < 1e-6);
    }

    #[test]
    fn divergence_and_agreement_are_those_of_the_definition() {
        let truth = predictions(&[(&[0.0, 0.0], 0)]);
        let other = predictions(&[(&[3f32.ln(), 0.0], 0)]);
        let score = truth.against(&other);
        // ½·ln(½ / ¾) + ½·ln(½ / ¼)
        let expected = 0.5 * (2.0f64 / 3.0).ln() + 0.5 * 2f64.ln();
        assert!((score.divergence - expected).abs() < 1e-6);
        assert!((score.ratio - 2.0 / 3.0).abs() < 1e-6);
        assert_eq!(score.agreement, 1.0);
        let opposite = predictions(&[(&[0.0, 3f32.ln()], 0)]);
        assert_eq!(truth.against(&opposite).agreement, 0.0);
    }
}
