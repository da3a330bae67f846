//! Reading of adapters: this rank's parts of their matrices, checked against the model.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::Path,
    sync::Arc,
};

use blake3::Hasher;
use lockstep_backend::CheckpointDtype;
use lockstep_files::{
    shown,
    weights::{Dtype, TensorPlace},
};
use lockstep_model_folder::adapter::{AdaptedModule, DescribedAdapter, load};
use lockstep_types::{AdapterError, AdapterLimits, ModelConfig};

use crate::{
    Shard,
    blocks::parts::{MatrixPart, TensorRows, Tensors},
    models::{adapters::Adaptable, decoder::Decoder},
};

/// Prefixes of layers in the names of modules, beside the checkpoint's own. The text model of a
/// wrapper is trained by itself or as a part, under names of several ages.
const LAYERS: [&str; 3] = [
    "model.layers",
    "model.language_model.layers",
    "language_model.model.layers",
];

/// Reader of adapters for one rank's part of a model. It may read on another thread while the model
/// runs.
#[derive(Debug, Clone)]
pub struct AdapterReader(Arc<Targets>);

/// Projections of a model, by the names of modules.
#[derive(Debug)]
struct Targets {
    limits: AdapterLimits,
    /// Prefix of layers in the checkpoint's names.
    layers: String,
    projections: Vec<Adaptable>,
    /// Projection and part of each module below the layers: "3.mlp.down_proj".
    places: BTreeMap<String, Vec<(usize, usize)>>,
    /// Modules of the model that adapters may not add to.
    others: BTreeSet<String>,
}

/// An adapter in memory of the host: this rank's parts, ready to be placed.
#[derive(Debug)]
pub struct ReadAdapter {
    content: u128,
    pub(crate) projections: Vec<Option<ReadProjection>>,
}

/// An adapter's matrices beside one projection.
#[derive(Debug)]
pub(crate) struct ReadProjection {
    /// f32 of `[parts · rank, in]`, row after row; zeros where a part has no rows.
    pub down: Vec<u8>,
    /// Factor of each part, and f32 of `[outputs, rank]`; `None` for a part that the adapter leaves
    /// as it is.
    pub parts: Vec<Option<(f32, Vec<u8>)>>,
}

impl ReadAdapter {
    /// Hash of all that the adapter computes with, equal on all ranks.
    pub fn content(&self) -> u128 {
        self.content
    }
}

impl AdapterReader {
    /// Makes a reader for the part of `model` on the rank of `shard`.
    pub fn new(model: &ModelConfig, shard: &Shard, limits: AdapterLimits) -> Self {
        let mut listed = Decoder::listed(model, shard);
        let projections = Adaptable::of(&mut listed);
        let mut places: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for (number, Adaptable(matrix)) in projections.iter().enumerate() {
            for (part, tensor) in matrix.tensors.iter().enumerate() {
                if let Some(module) = model.names.module(&tensor.name) {
                    let places = places.entry(module.to_owned()).or_default();
                    places.push((number, part));
                }
            }
        }
        let mut others = BTreeSet::new();
        let module = |name: &str| name.strip_suffix(".weight").unwrap_or(name).to_owned();
        let mut note = |matrix: &MatrixPart| {
            let names = matrix.tensors.iter().map(|tensor| module(&tensor.name));
            others.extend(names);
        };
        listed.each(&mut note, |_| {});
        Self(Arc::new(Targets {
            limits,
            layers: model.names.layers.clone(),
            projections,
            places,
            others,
        }))
    }

    /// Reads the adapter in `folder`, and checks that the model can run it.
    ///
    /// # Errors
    /// [`AdapterError`] says what is missing, damaged, or not served.
    pub fn read(&self, folder: &Path) -> Result<ReadAdapter, AdapterError> {
        let targets = &*self.0;
        let described = load(folder)?;
        // All of it is checked before any of it is read.
        let mut found = BTreeSet::new();
        for (name, module) in &described.modules {
            targets.check(&described, name, module)?;
            if !found.insert(targets.below(name)) {
                return Err(AdapterError::Tensor {
                    path: described.path.clone(),
                    tensor: shown(&module.down),
                    message: "adds to a module that the file also has by another name".to_owned(),
                });
            }
        }
        let mut read = ReadAdapter {
            content: 0,
            projections: targets.projections.iter().map(|_| None).collect(),
        };
        let mut hasher = Hasher::new();
        for (name, module) in &described.modules {
            let below = targets.below(name).unwrap_or(name);
            hasher.update(format!("{below} {:08x}", module.scale.to_bits()).as_bytes());
            let [down, up] = [&module.down, &module.up].map(|tensor| {
                let place = described.place(tensor);
                values(&described, tensor, place, &mut hasher)
            });
            let (down, up) = (down?, up?);
            for (number, part) in targets.places.get(below).into_iter().flatten() {
                let Adaptable(matrix) = &targets.projections[*number];
                let rank = targets.limits.rank;
                let own = &mut read.projections[*number];
                let own = own.get_or_insert_with(|| ReadProjection::zeros(matrix, rank));
                let module = (module.rank, module.scale);
                own.put(matrix, *part, rank, module, [&down, &up]);
            }
        }
        let hash = hasher.finalize();
        let (half, _) = hash.as_bytes().split_at(16);
        read.content = half
            .iter()
            .fold(0, |all, byte| all << 8 | u128::from(*byte));
        Ok(read)
    }
}

impl Targets {
    /// Returns the name of a module below the layers; `None` for a module of no layer.
    fn below<'n>(&self, module: &'n str) -> Option<&'n str> {
        let prefixes = std::iter::once(self.layers.as_str()).chain(LAYERS);
        let mut below =
            prefixes.filter_map(|prefix| module.strip_prefix(prefix)?.strip_prefix('.'));
        below.next()
    }

    /// Checks that the model has the module `name`, and that its matrices fit.
    fn check(
        &self,
        described: &DescribedAdapter,
        name: &str,
        module: &AdaptedModule,
    ) -> Result<(), AdapterError> {
        let wrong = |tensor: &str, message: String| AdapterError::Tensor {
            path: described.path.clone(),
            tensor: shown(tensor),
            message,
        };
        let below = self.below(name);
        let places = below.and_then(|below| self.places.get(below));
        let Some((number, part)) = places.and_then(|places| places.first()) else {
            let in_model = below.map(|below| format!("{}.{below}", self.layers));
            let known = |name: &str| self.others.contains(name);
            let message = match known(name) || in_model.as_deref().is_some_and(known) {
                true => {
                    "adds to a module that adapters are not served for: they are for the \
                     projections of attention and of dense MLPs; merge the adapter into the \
                     model with PEFT's `merge_and_unload`"
                }
                false => "adds to a module that the model does not have: it is for another model",
            };
            return Err(wrong(&module.down, message.to_owned()));
        };
        let most = self.limits.rank;
        if module.rank > most {
            let rank = module.rank;
            let message = format!(
                "has rank {rank}, and there is room for ranks up to {most}; start the server with \
                 --max-lora-rank {rank}"
            );
            return Err(wrong(&module.down, message));
        }
        let Adaptable(matrix) = &self.projections[*number];
        let expected = [
            (&module.down, [module.rank, matrix.width]),
            (&module.up, [matrix.tensors[*part].rows, module.rank]),
        ];
        for (tensor, expected) in expected {
            let found = described
                .place(tensor)
                .map_or(&[][..], |place| &place.shape);
            if found != expected {
                let message = format!(
                    "has shape {found:?}, the model implies {expected:?}: it is for another model"
                );
                return Err(wrong(tensor, message));
            }
        }
        Ok(())
    }
}

impl ReadProjection {
    fn zeros(matrix: &MatrixPart, rank: usize) -> Self {
        let parts = matrix.tensors.len();
        Self {
            down: vec![0; 4 * parts * rank * matrix.columns.len()],
            parts: vec![None; parts],
        }
    }

    /// Puts an adapter's whole matrices `[own, width]` and `[rows, own]`, of its `own` rank, in the
    /// place of part number `part`, as far as this rank takes them.
    fn put(
        &mut self,
        matrix: &MatrixPart,
        part: usize,
        rank: usize,
        (own, scale): (usize, f32),
        [down, up]: [&[f32]; 2],
    ) {
        let columns = matrix.columns.clone();
        let row_bytes = 4 * columns.len();
        let rows = self.down[part * rank * row_bytes..].chunks_exact_mut(row_bytes.max(1));
        for (to, from) in rows.zip(down.chunks_exact(matrix.width)) {
            write(&from[columns.clone()], to);
        }
        let tensor = &matrix.tensors[part];
        let mut taken = vec![0; 4 * rank * tensor.taken_rows()];
        let rows = taken.chunks_exact_mut(4 * rank);
        for (to, row) in rows.zip(taken_rows(tensor)) {
            write(&up[row * own..(row + 1) * own], to);
        }
        self.parts[part] = Some((scale, taken));
    }
}

/// Returns the rows of a tensor that a rank takes, in order.
fn taken_rows(tensor: &TensorRows) -> impl Iterator<Item = usize> {
    let ranges = tensor.taken.iter().cloned();
    ranges.flat_map(|range: Range<usize>| range.step_by(tensor.step))
}

/// Writes values to the begin of a row.
fn write(values: &[f32], to: &mut [u8]) {
    let to = to.as_chunks_mut::<4>().0;
    for (to, value) in to.iter_mut().zip(values) {
        *to = value.to_le_bytes();
    }
}

/// Reads a tensor whose shape was checked, and adds it to the hash.
fn values(
    described: &DescribedAdapter,
    tensor: &str,
    place: Option<&TensorPlace>,
    hasher: &mut Hasher,
) -> Result<Vec<f32>, AdapterError> {
    let wrong = |message: &str| AdapterError::Tensor {
        path: described.path.clone(),
        tensor: shown(tensor),
        message: message.to_owned(),
    };
    let place = place.ok_or_else(|| wrong("is missing"))?;
    let bytes = described.file.read(place);
    let bytes = bytes.map_err(|error| AdapterError::Read {
        path: described.path.clone(),
        message: shown(&error.to_string()),
    })?;
    hasher.update(format!("{:?} {:?}", place.dtype, place.shape).as_bytes());
    hasher.update(&bytes);
    let dtype = match place.dtype {
        Dtype::BF16 => CheckpointDtype::Bf16,
        Dtype::F16 => CheckpointDtype::F16,
        _ => CheckpointDtype::F32,
    };
    let mut values = vec![0.0; place.shape.iter().product()];
    dtype.decode(&bytes, &mut values);
    match values.iter().all(|value: &f32| value.is_finite()) {
        true => Ok(values),
        false => Err(wrong("holds a value that is no finite number")),
    }
}
