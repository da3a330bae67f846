//! Rotary position embeddings, and their changes for long contexts.

use serde::{Deserialize, Serialize};

/// Rotary position embedding (Su et al., arXiv:2104.09864).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Number of each head's columns that are rotated, from the first on; an even number. `None`
    /// rotates all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotated: Option<usize>,
    /// Change to the frequencies for long contexts.
    pub scaling: RopeScaling,
    /// Growth of queries with their position; `None` in most families.
    pub query_scaling: Option<QueryScaling>,
    /// Divisors of each pair's frequency; `None` in most families.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long: Option<LongRope>,
}

/// LongRoPE (Ding et al., arXiv:2402.13753): a divisor for each pair's frequency, from one list in
/// a server of short texts and from another in a server of long ones. Queries and keys grow by
/// `attention_factor`.
///
/// The choice is made once, by the longest text that is served, so that cached keys always fit.
/// Reference implementations change their choice where a text grows past the original length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LongRope {
    /// Divisors where no text is longer than the original length.
    pub short: Vec<f64>,
    /// Divisors where texts may be longer.
    pub long: Vec<f64>,
    /// Context length the model was first trained on.
    pub original_max_position: usize,
    /// Factor of cosines and sines.
    pub attention_factor: f64,
    /// Tokens of the longest text that is served.
    pub served: usize,
}

impl LongRope {
    /// Returns true if the divisors for long texts are used.
    pub fn is_long(&self) -> bool {
        self.served > self.original_max_position
    }

    /// Returns the divisor of each pair.
    pub fn divisors(&self) -> &[f64] {
        match self.is_long() {
            true => &self.long,
            false => &self.short,
        }
    }
}

/// Factor `1 + beta · ln(1 + ⌊p / original_max_position⌋)` of the queries at position `p`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct QueryScaling {
    /// Strength of the growth.
    pub beta: f64,
    /// Length of a step. Queries before this position have the factor one.
    pub original_max_position: usize,
}

/// Changes to the rotary frequencies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// None.
    Default,
    /// No rotation at all (NoPE, Kazemnejad et al., arXiv:2305.19466): the layer does not know
    /// positions.
    Unrotated,
    /// YaRN (Peng et al., arXiv:2309.00071): long wavelengths divided by `factor`, short ones
    /// kept, a ramp over the pairs between. Queries and keys grow by `attention_factor`.
    Yarn {
        /// The divisor of long wavelengths.
        factor: f64,
        /// Pairs that turn more often than this within the original length are kept.
        beta_fast: f64,
        /// Pairs that turn less often than this within the original length are divided.
        beta_slow: f64,
        /// Context length the model was first trained on.
        original_max_position: usize,
        /// Factor of cosines and sines.
        attention_factor: f64,
        /// True if the ends of the ramp are rounded to whole pairs.
        truncate: bool,
    },
    /// Frequencies as of a rotation of the whole head, of which the first `pairs` rotate.
    Proportional {
        /// Pairs that rotate.
        pairs: usize,
    },
    /// All positions divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1's: long wavelengths divided by `factor`, short ones kept, a smooth ramp between.
    Llama3 {
        /// The divisor of long wavelengths.
        factor: f64,
        /// Wavelengths above `original_max_position / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length the model was first trained on.
        original_max_position: usize,
    },
}

impl RopeConfig {
    /// Returns the divisors, if short texts and long ones have different ones. Those of Llama 3 in a
    /// GGUF file are one list for both.
    pub fn choice(&self) -> Option<LongRope> {
        self.long.clone().filter(|long| long.short != long.long)
    }

    /// Returns a rotation of unchanged frequencies with the base `theta`.
    pub fn plain(theta: f64) -> Self {
        Self {
            theta,
            rotated: None,
            scaling: RopeScaling::Default,
            query_scaling: None,
            long: None,
        }
    }

    /// Returns the rotation by nothing, of a layer that does not know positions.
    pub fn unrotated() -> Self {
        Self {
            scaling: RopeScaling::Unrotated,
            ..Self::plain(1.0)
        }
    }
}
