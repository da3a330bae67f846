//! Weights of recurrences over matrices of heads.

use bytemuck::Zeroable as _;
use lockstep_backend::{DeltaShape, GatedDelta, Mamba2};

use super::HeadRule;
use super::parameters::Delta;
use crate::runtime::Buffer;

/// Weights of a layer between its projections.
#[derive(Clone, Copy)]
pub(crate) enum HeadWeights<'a> {
    Delta(&'a GatedDelta<'a, Buffer<f32>>),
    Mamba2(&'a Mamba2<'a, Buffer<f32>>),
}

impl HeadWeights<'_> {
    /// Returns the rule, and this rank's heads.
    pub fn rule(&self) -> (HeadRule, &DeltaShape) {
        match self {
            Self::Delta(op) => (HeadRule::Delta, &op.shape),
            Self::Mamba2(op) => (HeadRule::Mamba2, &op.shape),
        }
    }

    /// Returns parameters that name the weights, and nothing else.
    ///
    /// # Panics
    /// Panics if weights have other sizes than those of heads of `shape`.
    pub(super) fn parameters(&self, shape: &DeltaShape) -> Delta {
        let (channels, heads) = (shape.channels(), shape.value_heads);
        let address = |weights: &Buffer<f32>, len: usize| {
            assert!(
                weights.len() == len,
                "weights of a recurrent layer have its sizes"
            );
            weights.address()
        };
        let none = Delta::zeroed();
        match self {
            Self::Delta(op) => Delta {
                convolution: address(op.convolution, shape.taps * channels),
                a_log: address(op.a_log, heads),
                dt_bias: address(op.dt_bias, heads),
                norm: address(op.norm, shape.value_dim),
                eps: op.eps,
                ..none
            },
            Self::Mamba2(op) => {
                let bias = op.convolution_bias;
                Delta {
                    convolution: address(op.convolution, shape.taps * channels),
                    bias: bias.map_or(0, |bias| address(bias, channels)),
                    a_log: address(op.a_log, heads),
                    dt_bias: address(op.dt_bias, heads),
                    skip: address(op.skip, heads),
                    ..none
                }
            }
        }
    }
}
