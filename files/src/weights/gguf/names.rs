//! Tensors of a GGUF file in the names of Hugging Face.

use std::ops::Range;

use crate::gguf::{
    Architecture, GgufError, Header, OUTSIDE, Parts, Tensor, is_list_of_divisors, wrong_type,
};
use crate::weights::{Dtype, TensorPlace};

/// A tensor that was renamed, or an expert's part of one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Renamed {
    /// Number of the file among the model's.
    pub file: usize,
    /// Name in Hugging Face's files.
    pub name: String,
    /// The place, in the first file's order of rows.
    pub place: TensorPlace,
}

/// Returns all tensors of a model in Hugging Face's names. Stacks of experts become a tensor for
/// each expert. Tensors whose values are in `config.json` are left out.
///
/// # Errors
/// [`GgufError`]: a tensor is not known, or of a type that is not served.
pub(super) fn renamed(parts: &Parts) -> Result<Vec<Renamed>, GgufError> {
    let model = Model::of(parts)?;
    let mut all = Vec::new();
    for (file, (_, header)) in parts.files.iter().enumerate() {
        for (name, tensor) in &header.tensors {
            if !tensor.kind.is_served() {
                return Err(wrong_type(header, name, tensor.kind.name));
            }
            if is_list_of_divisors(name) {
                continue;
            }
            let found = model.find(header, name, tensor)?;
            if all.len() + found.len() > MOST_RENAMED {
                let reason = format!("it has more than {MOST_RENAMED} tensors and experts");
                return Err(GgufError::damaged(&header.name, reason));
            }
            all.extend(
                found
                    .into_iter()
                    .map(|(name, place)| Renamed { file, name, place }),
            );
        }
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    match all.windows(2).find(|pair| pair[0].name == pair[1].name) {
        None => Ok(all),
        Some(pair) => {
            let reason = format!("two tensors have the name {}", pair[0].name);
            Err(GgufError::damaged(&parts.first().name, reason))
        }
    }
}

/// Facts about a model that names and orders depend on.
struct Model {
    architecture: &'static Architecture,
    /// Heads of queries, and of keys.
    heads: [u64; 2],
}

impl Model {
    fn of(parts: &Parts) -> Result<Self, GgufError> {
        let header = parts.first();
        let architecture = Architecture::of(header)?;
        let mut heads = [0; 2];
        if architecture.neighbours {
            let key = |key: &str| format!("{}.attention.{key}", architecture.name);
            let all = key("head_count");
            heads[0] = header.unsigned(&all)?.ok_or_else(|| header.missing(&all))?;
            heads[1] = header.unsigned(&key("head_count_kv"))?.unwrap_or(heads[0]);
        }
        Ok(Self {
            architecture,
            heads,
        })
    }

    /// Returns the names and places of a tensor, or of its experts.
    fn find(
        &self,
        header: &Header,
        name: &str,
        tensor: &Tensor,
    ) -> Result<Vec<(String, TensorPlace)>, GgufError> {
        let unknown = || {
            let own = self.architecture.name;
            let reason = format!(
                "tensor {name} is not known in models of the architecture {own}, and may change \
                 results; use the model's safetensors"
            );
            GgufError::unserved(&header.name, reason)
        };
        let (stem, ending) = name.rsplit_once('.').ok_or_else(unknown)?;
        if !["weight", "bias"].contains(&ending) {
            return Err(unknown());
        }
        if let Some((_, new)) = OUTSIDE.iter().find(|(old, _)| *old == stem) {
            return Ok(vec![(
                format!("{new}.{ending}"),
                self.place(header, stem, tensor)?,
            )]);
        }
        let below = stem
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'));
        let (layer, own) = below.ok_or_else(unknown)?;
        // The number is written as it is read, so that no two names become one.
        let number: u32 = layer.parse().map_err(|_| unknown())?;
        if number.to_string() != layer {
            return Err(unknown());
        }
        let prefix = format!("model.layers.{layer}");
        let mut names = self.architecture.layer.iter().copied().flatten();
        if let Some((_, new)) = names.find(|(old, _)| *old == own) {
            let place = self.place(header, own, tensor)?;
            return Ok(vec![(format!("{prefix}.{new}.{ending}"), place)]);
        }
        let mut stacks = self.architecture.experts.iter();
        let (_, [before, behind]) = stacks.find(|(old, _)| *old == own).ok_or_else(unknown)?;
        let [count, _, _] = tensor.shape[..] else {
            let reason = format!("tensor {name} has no three dimensions");
            return Err(GgufError::damaged(&header.name, reason));
        };
        if count > MOST_EXPERTS {
            let reason = format!("tensor {name} has {count} experts, more than {MOST_EXPERTS}");
            return Err(GgufError::damaged(&header.name, reason));
        }
        let experts = experts(tensor).into_iter().enumerate();
        let named = experts.map(|(number, place)| {
            let name = format!("{prefix}.{before}.{number}.{behind}.{ending}");
            (name, place)
        });
        Ok(named.collect())
    }

    fn place(&self, header: &Header, own: &str, tensor: &Tensor) -> Result<TensorPlace, GgufError> {
        let heads = match own {
            "attn_q" if self.architecture.neighbours => Some(self.heads[0]),
            "attn_k" if self.architecture.neighbours => Some(self.heads[1]),
            _ => None,
        };
        let rows = tensor.shape.first().copied().unwrap_or(0) as u64;
        let interleaved = match heads {
            None => None,
            Some(heads) if heads > 0 && rows.is_multiple_of(heads.saturating_mul(2)) => {
                Some((rows / heads) as usize)
            }
            Some(heads) => {
                let reason = format!("tensor {own} has {rows} rows for {heads} heads");
                return Err(GgufError::damaged(&header.name, reason));
            }
        };
        Ok(TensorPlace {
            interleaved,
            ..placed(tensor, tensor.shape.clone(), tensor.bytes.clone())
        })
    }
}

/// Most experts of a layer, and most tensors of a model with each expert's own. Models of 2026 have
/// less than a tenth of both.
const MOST_EXPERTS: usize = 4_096;
const MOST_RENAMED: usize = 1 << 20;

fn placed(tensor: &Tensor, shape: Vec<usize>, bytes: Range<u64>) -> TensorPlace {
    TensorPlace {
        dtype: match tensor.kind.name {
            "F32" => Dtype::F32,
            "F16" => Dtype::F16,
            "BF16" => Dtype::BF16,
            _ => Dtype::Blocks(tensor.kind),
        },
        shape,
        bytes,
        interleaved: None,
    }
}

/// Returns the places of a stack's matrices. The stack's bytes are whole ones for each.
fn experts(tensor: &Tensor) -> Vec<TensorPlace> {
    let (count, shape) = match tensor.shape.split_first() {
        Some((count, shape)) if !shape.is_empty() => (*count as u64, shape.to_vec()),
        _ => (1, tensor.shape.clone()),
    };
    let size = (tensor.bytes.end - tensor.bytes.start) / count.max(1);
    let place = |number| {
        let begin = tensor.bytes.start + number * size;
        placed(tensor, shape.clone(), begin..begin + size)
    };
    (0..count).map(place).collect()
}

#[cfg(test)]
mod tests;
