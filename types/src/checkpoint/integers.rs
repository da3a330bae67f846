//! Integers of 4 and 8 bits in a checkpoint, with a scale for every group of inputs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{BlockType, Fp8Checkpoint};
use crate::{Codes, FactorType, GroupFormat, Minimum};

/// Integers with scales in a checkpoint: those of GPTQ (Frantar et al., arXiv:2210.17323), AWQ
/// (Lin et al., arXiv:2306.00978), AutoRound and compressed-tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntegerCheckpoint {
    /// Layout of the tensors.
    pub layout: IntegerLayout,
    /// Widths of integers that the configuration names, in bits.
    pub bits: Vec<u8>,
    /// Inputs that share a scale, as the configuration names them; `None` for whole rows.
    pub groups: Vec<Option<usize>>,
    /// True where groups have zero points of their own, as the configuration says it. It has both
    /// values if modules differ.
    pub zeros: Vec<bool>,
    /// Forms of modules. The first one is that of all modules of layers that are not `others`.
    pub forms: Vec<ModuleForm>,
    /// Modules of other forms, and quantized modules outside of layers, by their whole names
    /// ("model.layers.3.mlp.down_proj", "lm_head"): the places of their forms in `forms`.
    pub others: BTreeMap<String, usize>,
    /// Scales of 8-bit floats, in a checkpoint that has such floats, too.
    pub fp8: Option<Fp8Checkpoint>,
}

/// Order of integers in the tensors of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IntegerLayout {
    /// compressed-tensors: one row for each output. Words of integers lie along inputs, or every
    /// integer has a byte. Words of zero points lie along outputs.
    CompressedTensors,
    /// GPTQ: words lie along inputs, one row for each word of inputs. Words of zero points lie
    /// along outputs.
    Gptq {
        /// True if zero points are stored less one (version 1 of the format).
        less_one: bool,
    },
    /// AWQ, in the version "gemm": words lie along outputs, one row for each input. The even
    /// outputs of a word come before the odd ones.
    Awq,
}

/// Form of a module's weight in a checkpoint of integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModuleForm {
    /// Integers with scales.
    Integers(IntegerForm),
    /// Blocks of a GGUF file.
    Blocks(BlockType),
    /// 8-bit floats with scales.
    Fp8,
    /// Floats of 16 or 32 bits.
    Floats,
}

/// Integers of one module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IntegerForm {
    /// Bits of an integer: 4 or 8.
    pub bits: u8,
    /// Consecutive inputs that share a scale; `None` if whole rows do.
    pub group: Option<usize>,
    /// True if each group has a zero point of its own. Otherwise it is half of the range.
    pub zeros: bool,
    /// Type of scales.
    pub scales: FactorType,
    /// True if the inputs of a group may lie apart (act-order).
    pub scattered: bool,
}

impl IntegerForm {
    /// Returns the layout in which devices keep such integers, counted from the first input of
    /// the whole matrix: groups are as long as a device's that always share a scale. `None` if
    /// these are too short for devices, or if the inputs of a group lie apart.
    pub fn layout(&self) -> Option<GroupFormat> {
        if self.scattered {
            return None;
        }
        let zeros = self.group.map_or(u32::MAX, usize::trailing_zeros);
        let group = 1 << zeros.min(GroupFormat::STEP.trailing_zeros());
        let minimum = match self.zeros {
            true => Minimum::Zero,
            false => Minimum::None,
        };
        let layout = |bits| GroupFormat {
            bits,
            codes: Codes::Integers,
            group,
            factor_group: group,
            minimum,
            factors: self.scales,
        };
        // Short groups have no codes of 4 bits on devices.
        let layouts = [self.bits, 8].map(layout);
        layouts.into_iter().find(GroupFormat::is_kept)
    }
}

impl IntegerCheckpoint {
    /// Returns the form of the weight of `module`, a module of a layer.
    pub fn form(&self, module: &str) -> ModuleForm {
        let place = self.others.get(module).copied().unwrap_or(0);
        self.forms.get(place).copied().unwrap_or(ModuleForm::Floats)
    }

    /// Returns the form of the weight of `module`, which lies outside of layers.
    pub fn outer_form(&self, module: &str) -> ModuleForm {
        match self.others.contains_key(module) {
            true => self.form(module),
            false => ModuleForm::Floats,
        }
    }

    /// Returns how many of the `inputs` inputs of a module share a scale, of which a row has
    /// `scales`: `Some(None)` if whole rows do, `None` if the configuration names no such group,
    /// or several.
    pub fn group(&self, scales: usize, inputs: usize) -> Option<Option<usize>> {
        if scales == 1 {
            return Some(None);
        }
        let fits = |group: &&Option<usize>| {
            group.is_some_and(|group| group > 0 && inputs.div_ceil(group) == scales)
        };
        let mut found = self.groups.iter().filter(fits);
        match (found.next(), found.next()) {
            (Some(group), None) => Some(*group),
            _ => None,
        }
    }

    /// Returns a name of the integers for people: "4- and 8-bit integers".
    pub fn name(&self) -> String {
        let bits: Vec<_> = self.bits.iter().map(u8::to_string).collect();
        format!("{}-bit integers", bits.join("- and "))
    }

    /// Describes integers and their scales for people.
    pub(super) fn describe(&self) -> String {
        let listed = |words: Vec<String>| match words.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => words.concat(),
        };
        let layout = match self.layout {
            IntegerLayout::CompressedTensors => "",
            IntegerLayout::Gptq { .. } => " (GPTQ)",
            IntegerLayout::Awq => " (AWQ)",
        };
        let bits = self.bits.iter().map(u8::to_string).collect();
        let groups = self.groups.iter().map(|group| match group {
            Some(group) => format!("every {group} inputs"),
            None => "every row".to_owned(),
        });
        let mut found = format!(
            "integers of {} bits{layout} with a scale for {}",
            listed(bits),
            listed(groups.collect())
        );
        let scattered =
            |form: &ModuleForm| matches!(form, ModuleForm::Integers(form) if form.scattered);
        if self.forms.iter().any(scattered) {
            found += " in the order of activations (act-order)";
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CheckpointFormat;

    fn form(group: Option<usize>) -> IntegerForm {
        IntegerForm {
            bits: 4,
            group,
            zeros: false,
            scales: FactorType::F16,
            scattered: false,
        }
    }

    fn checkpoint(groups: &[Option<usize>]) -> IntegerCheckpoint {
        IntegerCheckpoint {
            layout: IntegerLayout::Awq,
            bits: vec![4],
            groups: groups.to_vec(),
            zeros: vec![false],
            forms: vec![ModuleForm::Integers(form(groups[0])), ModuleForm::Floats],
            others: BTreeMap::new(),
            fp8: None,
        }
    }

    #[test]
    fn a_group_on_a_device_has_one_scale() {
        for (bits, group, expected) in [
            (4, None, Some((4, 128))),
            (4, Some(128), Some((4, 128))),
            (4, Some(96), Some((4, 32))),
            (8, Some(1024), Some((8, 128))),
            (4, Some(16), Some((8, 16))),
            (8, Some(16), Some((8, 16))),
            (4, Some(20), None),
        ] {
            let own = IntegerForm {
                bits,
                ..form(group)
            };
            let found = own.layout().map(|layout| (layout.bits, layout.group));
            assert_eq!(found, expected, "{bits} {group:?}");
        }
        let scattered = IntegerForm {
            scattered: true,
            ..form(Some(128))
        };
        assert_eq!(scattered.layout(), None);
        let minimum = |form: IntegerForm| form.layout().map(|layout| layout.minimum);
        let zeros = IntegerForm {
            zeros: true,
            ..form(None)
        };
        assert_eq!(minimum(form(None)), Some(Minimum::None));
        assert_eq!(minimum(zeros), Some(Minimum::Zero));
    }

    /// A partial last group counts, so 160 inputs in two groups may be groups of 80 or of 128.
    #[test]
    fn groups_are_those_that_the_configuration_names() {
        let of_128 = checkpoint(&[Some(128), Some(32)]);
        for (scales, inputs, expected) in [
            (1, 160, Some(None)),
            (2, 160, Some(Some(128))),
            (5, 160, Some(Some(32))),
            (3, 160, None),
        ] {
            assert_eq!(of_128.group(scales, inputs), expected, "{scales} {inputs}");
        }
        assert_eq!(checkpoint(&[Some(80), Some(128)]).group(2, 160), None);
        assert_eq!(checkpoint(&[None]).group(2, 160), None);
    }

    #[test]
    fn modules_outside_of_layers_are_floats_unless_listed() {
        let mut all = checkpoint(&[Some(128)]);
        let integers = all.forms[0];
        assert_eq!(all.form("model.layers.0.mlp.up_proj"), integers);
        assert_eq!(all.outer_form("lm_head"), ModuleForm::Floats);
        all.others.insert("lm_head".to_owned(), 0);
        all.others
            .insert("model.layers.0.mlp.up_proj".to_owned(), 1);
        assert_eq!(all.outer_form("lm_head"), integers);
        assert_eq!(all.form("model.layers.0.mlp.up_proj"), ModuleForm::Floats);
        let told = CheckpointFormat::Integers(all)
            .describe()
            .expect("no floats");
        assert_eq!(checkpoint(&[None]).name(), "4-bit integers");
        assert_eq!(
            told,
            "integers of 4 bits (AWQ) with a scale for every 128 inputs, but for 1 projections"
        );
    }
}
