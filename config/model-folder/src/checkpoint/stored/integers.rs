//! Modules of a checkpoint of integers, told by their tensors.

use std::collections::BTreeMap;

use lockstep_files::weights::{Dtype, TensorPlace, WeightFile};
use lockstep_files::{on_reader_thread, read_exact_at};
use lockstep_types::{
    CheckpointFormat, FactorType, IntegerCheckpoint, IntegerForm, IntegerLayout, ModelConfig,
    ModuleForm,
};

/// Finds the form of each module of `model`, whose weights are in `files`. Returns notes for the
/// operator. What does not fit is reported by the code that loads the weights.
pub(super) fn read(model: &mut ModelConfig, files: &[WeightFile]) -> Vec<String> {
    let CheckpointFormat::Integers(known) = &mut model.checkpoint else {
        return Vec::new();
    };
    let tensors = Tensors {
        known,
        places: files
            .iter()
            .flat_map(|file| {
                file.tensors
                    .iter()
                    .map(move |(name, place)| (name.as_str(), (file, place)))
            })
            .collect(),
    };
    let (mut inner, mut outer) = (BTreeMap::new(), BTreeMap::new());
    for (name, (_, place)) in &tensors.places {
        let Some((module, form)) = tensors.form(name, place) else {
            continue;
        };
        match (model.names.below(name), form) {
            (Some(_), form) => {
                inner.insert(module.to_owned(), form);
            }
            (None, ModuleForm::Integers(_)) => {
                outer.insert(module.to_owned(), form);
            }
            (None, ModuleForm::Blocks(_) | ModuleForm::Fp8 | ModuleForm::Floats) => {}
        }
    }
    let mut notes = Vec::new();
    notes.extend(widened(inner.values().chain(outer.values())));
    set_forms(known, &inner, outer);
    if model.tie_word_embeddings && known.others.contains_key(&model.names.head) {
        model.tie_word_embeddings = false;
        notes.push(format!(
            "the stored output head ({}), whose weights are integers, is served, though \
             config.json has `tie_word_embeddings` true; set that to false",
            model.names.head
        ));
    }
    notes
}

/// Sets the forms of modules, inside of layers and outside of them.
fn set_forms(
    known: &mut IntegerCheckpoint,
    inner: &BTreeMap<String, ModuleForm>,
    outer: BTreeMap<String, ModuleForm>,
) {
    let mut counts = BTreeMap::<ModuleForm, usize>::new();
    for form in inner
        .values()
        .filter(|form| matches!(form, ModuleForm::Integers(_)))
    {
        *counts.entry(*form).or_default() += 1;
    }
    if let Some((most, _)) = counts.into_iter().max_by_key(|(_, count)| *count) {
        known.forms = vec![most];
    }
    let usual = known.forms.first().copied();
    let unusual = inner.iter().filter(|(_, form)| Some(**form) != usual);
    let unusual = unusual.map(|(module, form)| (module.clone(), *form));
    for (module, form) in unusual.chain(outer) {
        let place = known.forms.iter().position(|own| *own == form);
        let place = place.unwrap_or_else(|| {
            known.forms.push(form);
            known.forms.len() - 1
        });
        known.others.insert(module, place);
    }
}

/// A note about modules that no device keeps as integers.
fn widened<'f>(forms: impl Iterator<Item = &'f ModuleForm>) -> Option<String> {
    let wide =
        |form: &&ModuleForm| matches!(form, ModuleForm::Integers(form) if form.layout().is_none());
    match forms.filter(wide).count() {
        0 => None,
        count => Some(format!(
            "{count} projections are kept as 32-bit floats, which have the same values and take 4 \
             to 8 times the memory: their scales change after fewer than 16 inputs, or their \
             inputs are not in the order of groups (act-order)"
        )),
    }
}

/// The tensors of a checkpoint, with what its configuration says of integers.
struct Tensors<'f> {
    known: &'f IntegerCheckpoint,
    places: BTreeMap<&'f str, (&'f WeightFile, &'f TensorPlace)>,
}

impl Tensors<'_> {
    /// Returns the module of which the tensor `name` at `place` holds the weight, and the weight's
    /// form; `None` for other tensors.
    fn form<'n>(&self, name: &'n str, place: &TensorPlace) -> Option<(&'n str, ModuleForm)> {
        let (module, last) = name.rsplit_once('.')?;
        let of_compressed = self.known.layout == IntegerLayout::CompressedTensors;
        let form = match (last, place.dtype) {
            ("weight", Dtype::F8_E4M3) => ModuleForm::Fp8,
            ("weight", Dtype::I8) if of_compressed => self.integers(module, place),
            ("weight", _) if place.shape.len() == 2 => ModuleForm::Floats,
            ("weight_packed", _) if of_compressed => self.integers(module, place),
            ("qweight", _) if !of_compressed => self.integers(module, place),
            _ => return None,
        };
        Some((module, form))
    }

    /// Returns the form of integers whose words are at `place`.
    fn integers(&self, module: &str, place: &TensorPlace) -> ModuleForm {
        let scales = match self.known.layout {
            IntegerLayout::CompressedTensors => self.place(module, "weight_scale"),
            IntegerLayout::Gptq { .. } | IntegerLayout::Awq => self.place(module, "scales"),
        };
        let shape = scales.map_or(&[][..], |scales| &scales.shape);
        let groups = match (self.known.layout, shape) {
            (IntegerLayout::CompressedTensors, [_, .., groups]) => *groups,
            (IntegerLayout::CompressedTensors, _) => 1,
            (_, shape) => shape.first().copied().unwrap_or(1),
        };
        let (bits, inputs) = self.sizes(module, place, groups);
        let has = |last: &str| self.place(module, last).is_some();
        let scattered = self
            .known
            .forms
            .iter()
            .any(|form| matches!(form, ModuleForm::Integers(form) if form.scattered));
        let (zeros, scattered) = match self.known.layout {
            IntegerLayout::CompressedTensors => {
                (has("weight_zero_point"), scattered && has("weight_g_idx"))
            }
            IntegerLayout::Gptq { .. } => (self.known.zeros.contains(&true), scattered),
            IntegerLayout::Awq => (true, false),
        };
        // No device keeps groups that fit nothing, and the code that loads them refuses them.
        let group = self.known.group(groups, inputs).unwrap_or(Some(1));
        ModuleForm::Integers(IntegerForm {
            bits,
            group,
            zeros,
            scales: match scales.map(|scales| scales.dtype) {
                Some(Dtype::BF16) => FactorType::Bf16,
                Some(Dtype::F32) => FactorType::F32,
                _ => FactorType::F16,
            },
            scattered: scattered && group.is_some(),
        })
    }

    /// Returns the width of integers in bits, and the number of inputs, of a module whose words
    /// are at `place` and whose rows have `groups` scales.
    fn sizes(&self, module: &str, place: &TensorPlace, groups: usize) -> (u8, usize) {
        let bits = self.known.bits.first().copied().unwrap_or(4);
        let [high, wide] = match *place.shape {
            [high, wide] => [high, wide],
            _ => [0, 0],
        };
        let words = |count: usize, bits: u8| (count * usize::from(bits)).div_ceil(32);
        match self.known.layout {
            IntegerLayout::Awq => (4, high),
            IntegerLayout::Gptq { .. } => {
                let zeros = self
                    .place(module, "qzeros")
                    .and_then(|zeros| zeros.shape.last().copied());
                let fits = |bits: &&u8| Some(words(wide, **bits)) == zeros;
                let bits = self.known.bits.iter().find(fits).copied().unwrap_or(bits);
                (bits, high * 32 / usize::from(bits))
            }
            IntegerLayout::CompressedTensors if place.dtype == Dtype::I8 => (8, wide),
            IntegerLayout::CompressedTensors => {
                let most = wide * 32 / usize::from(bits);
                if self.known.bits.len() == 1 && self.known.group(groups, most).is_some() {
                    return (bits, most);
                }
                let inputs = self.stored_inputs(module).unwrap_or(most);
                let fits = |bits: &&u8| words(inputs, **bits) == wide;
                let bits = self.known.bits.iter().find(fits).copied().unwrap_or(bits);
                (bits, inputs)
            }
        }
    }

    /// Reads the number of inputs that a module says it has.
    fn stored_inputs(&self, module: &str) -> Option<usize> {
        let (file, place) = self.places.get(format!("{module}.weight_shape").as_str())?;
        let size = match place.dtype {
            Dtype::I64 => 8,
            Dtype::I32 => 4,
            _ => return None,
        };
        if place.shape != [2] {
            return None;
        }
        let (file, at) = (file.file.try_clone().ok()?, place.bytes.start + size);
        let read = on_reader_thread(move || {
            let mut found = [0; 8];
            read_exact_at(&file, &mut found[..size as usize], at)?;
            Ok(found)
        });
        usize::try_from(i64::from_le_bytes(read.ok()?)).ok()
    }

    /// Returns the place of a tensor of a module.
    fn place(&self, module: &str, last: &str) -> Option<&TensorPlace> {
        let (_, place) = self.places.get(format!("{module}.{last}").as_str())?;
        Some(place)
    }
}
