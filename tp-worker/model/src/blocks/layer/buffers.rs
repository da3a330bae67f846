//! Activations of a layer, allocated once.

use lockstep_backend::{Backend, BackendError, Holds, Rows};
use lockstep_types::ModelConfig;

use super::{Layer, Variants};
use crate::{
    Shard,
    blocks::adapted::RowAdapters,
    blocks::allocate::Allocate,
    blocks::per_layer::{PerLayerBuffers, PerLayerHalf},
    blocks::{AllRows, Boundary, MixerBuffers, MlpBuffers, MlpOperands},
    split::crossing::Crossing,
};

/// One set of activations, reused by every layer and every pass. `n` is the number of tokens
/// of this DP rank, and `a` the number of rows of all DP ranks.
pub(crate) struct LayerBuffers<T> {
    /// The residual stream, `[n, hidden]`.
    pub residual: T,
    /// The sum that a block adds to the residual stream, `[n, hidden]`.
    pub delta: T,
    /// Normed residual, `[n, hidden]`.
    pub normed: T,
    pub mixers: MixerBuffers<T>,
    pub mlps: MlpBuffers<T>,
    /// Buffers for per-layer embeddings; `None` where there are none.
    pub per_layer: Option<PerLayerBuffers<T>>,
    /// Buffers for the rows of all DP ranks; `None` with one DP rank.
    pub all: Option<AllRows<T>>,
    /// Places of rows' adapters; `None` without room for adapters.
    pub adapters: Option<RowAdapters<T>>,
}

/// Buffers that the second half of a layer, behind the mixer, reads and writes.
pub(crate) struct SecondHalf<'a, T> {
    /// The columns that the mixer has left; `None` in a layer without one.
    pub mixed: Option<&'a T>,
    /// Places of the adapters of these rows; `None` if no row of the pass has one.
    pub places: Option<&'a T>,
    pub stream: MlpOperands<'a, T>,
    pub mlp: &'a mut MlpBuffers<T>,
    pub per_layer: Option<PerLayerHalf<'a, T>>,
}

impl<T> LayerBuffers<T> {
    /// Allocates buffers for the layers of `model`, and passes of at most `tokens` tokens of
    /// each DP rank.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        model: &ModelConfig,
        shard: &Shard,
        tokens: usize,
    ) -> Result<Self, BackendError> {
        let (hidden, dp_size) = (model.hidden_size, shard.topology.dp_size());
        let Variants { mixers, mlps } = Variants::of(model, shard);
        let all = tokens.saturating_mul(dp_size);
        Ok(Self {
            residual: device.activations(tokens, hidden, Holds::Sum)?,
            delta: device.activations(tokens, hidden, Holds::Sum)?,
            normed: device.activations(tokens, hidden, Holds::Operand)?,
            mixers: MixerBuffers::new(device, &mixers, tokens)?,
            mlps: MlpBuffers::new(device, &mlps, all)?,
            per_layer: PerLayerBuffers::new(device, model, tokens)?,
            all: match dp_size {
                1 => None,
                _ => Some(AllRows::new(device, all, hidden)?),
            },
            adapters: None,
        })
    }

    /// Takes the wanted rows of what `from` has of every token as a layer begins: the residual
    /// stream, as it is and normed, and embeddings of all layers.
    pub fn take_wanted<B: Backend<Tensor = T>>(
        &mut self,
        backend: &mut B,
        from: &Self,
        inputs: &B::Inputs,
        wanted: usize,
    ) {
        self.set_rows(backend, wanted, wanted);
        let rows = || Rows::Wanted(inputs, 0..wanted);
        backend.gather_rows(&from.residual, rows(), &mut self.residual);
        backend.gather_rows(&from.normed, rows(), &mut self.normed);
        if let Some((own, from)) = self.adapters.as_mut().zip(from.adapters.as_ref()) {
            own.take_wanted(backend, from, inputs, wanted);
        }
        if let Some((own, from)) = self.per_layer.as_mut().zip(from.per_layer.as_ref()) {
            backend.gather_rows(&from.embedded, rows(), &mut own.embedded);
            backend.gather_rows(&from.first, rows(), &mut own.first);
        }
    }

    /// Returns the buffers for the second half of `layer` over every token.
    pub fn second_half<'a, B: Backend<Tensor = T>>(
        &'a mut self,
        layer: &Layer<B>,
        crossing: Option<&'a Crossing>,
    ) -> SecondHalf<'a, T> {
        let places = self.adapters.as_ref().and_then(RowAdapters::own);
        SecondHalf {
            mixed: layer.mixer.as_ref().map(|own| own.mixed(&self.mixers)),
            places,
            stream: MlpOperands {
                residual: &mut self.residual,
                delta: &mut self.delta,
                normed: &mut self.normed,
                places: self.adapters.as_ref().and_then(|own| own.of_mlp(places)),
                boundary: Boundary::new(crossing, &mut self.all),
            },
            mlp: &mut self.mlps,
            per_layer: self.per_layer.as_mut().map(PerLayerBuffers::half),
        }
    }

    /// Returns the buffers for the second half of `layer` over the wanted rows alone, since
    /// only single tokens are read behind the last mixer. Its columns of these rows are copied
    /// to `mixed`, or those of the normed stream if the layer has no mixer, and their residuals to
    /// `delta`. `delta` then serves as the residual stream,
    /// and `residual` as the sum. [`Self::set_rows`] restores the row counts.
    pub fn narrow<'a, B: Backend<Tensor = T>>(
        &'a mut self,
        backend: &mut B,
        layer: &Layer<B>,
        inputs: &B::Inputs,
        wanted: usize,
        mixed: &'a mut T,
        crossing: Option<&'a Crossing>,
    ) -> SecondHalf<'a, T> {
        let rows = || Rows::Wanted(inputs, 0..wanted);
        backend.set_rows(mixed, wanted);
        let columns = match &layer.mixer {
            Some(mixer) => mixer.mixed(&self.mixers),
            None => &self.normed,
        };
        backend.gather_rows(columns, rows(), mixed);
        self.set_block_rows(backend, wanted);
        self.set_mlp_rows(backend, crossing.map_or(wanted, Crossing::all));
        backend.gather_rows(&self.residual, rows(), &mut self.delta);
        if layer.mixer.is_none() {
            backend.place_columns(mixed, &mut self.normed, 0);
        }
        backend.set_rows(&mut self.residual, wanted);
        let per_layer = self.per_layer.as_mut();
        let per_layer = per_layer.map(|own| own.narrow(backend, inputs, wanted));
        let places = self.adapters.as_ref().and_then(RowAdapters::wanted);
        SecondHalf {
            mixed: layer.mixer.is_some().then_some(&*mixed),
            places,
            stream: MlpOperands {
                residual: &mut self.delta,
                delta: &mut self.residual,
                normed: &mut self.normed,
                places: self.adapters.as_ref().and_then(|own| own.of_mlp(places)),
                boundary: Boundary::new(crossing, &mut self.all),
            },
            mlp: &mut self.mlps,
            per_layer,
        }
    }

    /// Sets the row count of the buffers that only the second half of a layer writes, except
    /// the MLP's for rows of all DP ranks.
    fn set_block_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        backend.set_rows(&mut self.delta, rows);
        backend.set_rows(&mut self.normed, rows);
        self.mlps.set_own_rows(backend, rows);
    }

    /// Sets the row count of the buffers that the MLP reads and writes.
    pub fn set_mlp_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize) {
        self.mlps.set_rows(backend, rows);
        if let Some(all) = &mut self.all {
            all.set_rows(backend, rows);
        }
    }

    /// Sets the row count of all buffers: `rows` rows of this DP rank, `all` rows of all DP
    /// ranks.
    pub fn set_rows(&mut self, backend: &mut impl Backend<Tensor = T>, rows: usize, all: usize) {
        self.set_block_rows(backend, rows);
        self.set_mlp_rows(backend, all);
        backend.set_rows(&mut self.residual, rows);
        self.mixers.set_rows(backend, rows);
        if let Some(per_layer) = &mut self.per_layer {
            per_layer.set_rows(backend, rows);
        }
    }
}
