//! Numbers of ranks that the heads of a model can be split over.

use super::{Mixer, ModelConfig};

impl Mixer {
    /// Name of what [`Self::heads`] counts.
    fn heads_name(&self) -> &'static str {
        match self {
            Self::Attention(_) | Self::LatentAttention(_) => "attention heads",
            Self::GatedDelta(_) => "key heads of recurrent layers",
            Self::Mamba2(_) => "Mamba-2 heads",
            Self::ShortConvolution(_) => "channels of short convolutions",
            Self::None => "heads",
        }
    }
}

impl ModelConfig {
    /// Returns the largest number of ranks that can divide the heads of every layer, as
    /// [`Mixer::heads`] counts them.
    pub fn common_heads(&self) -> usize {
        let divisor = |mut a: usize, mut b: usize| {
            while b > 0 {
                (a, b) = (b, a % b);
            }
            a
        };
        let heads = self.layers.iter().map(|layer| layer.mixer.heads());
        heads.fold(0, divisor)
    }

    /// Returns the numbers of ranks that divide the heads of every layer, in rising order.
    pub fn head_splits(&self) -> Vec<usize> {
        let heads = self.common_heads();
        let divides = |ranks: &usize| heads.is_multiple_of(*ranks);
        (1..=heads).filter(divides).collect()
    }

    /// Returns the heads that `ranks` ranks can't divide, with their name, once for each number
    /// of them, in the order of layers. Example: 6 attention heads, on 4 ranks.
    pub fn undivided_heads(&self, ranks: usize) -> Vec<(usize, &'static str)> {
        let mut all = Vec::new();
        for mixer in self.layers.iter().map(|layer| &layer.mixer) {
            let heads = (mixer.heads(), mixer.heads_name());
            if !heads.0.is_multiple_of(ranks) && !all.contains(&heads) {
                all.push(heads);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use crate::{AttentionSpec, Mixer, kv::tests::model};

    #[test]
    fn undivided_heads_are_those_of_the_layers_that_have_them() {
        let heads = [8, 6, 8, 12];
        let mut mixed = model(heads.map(|heads| AttentionSpec::dense(heads, 2, 8)));
        assert_eq!((mixed.common_heads(), mixed.head_splits()), (2, vec![1, 2]));
        let name = "attention heads";
        assert_eq!(mixed.undivided_heads(4), [(6, name)]);
        assert_eq!(mixed.undivided_heads(3), [(8, name)]);
        assert_eq!(mixed.undivided_heads(8), [(6, name), (12, name)]);
        assert!(mixed.undivided_heads(2).is_empty());
        assert_eq!(mixed.undivided_heads(0).len(), 3, "no ranks divide nothing");
        mixed.layers[1].mixer = Mixer::None;
        assert!(mixed.undivided_heads(4).is_empty(), "an MLP has no heads");
    }
}
