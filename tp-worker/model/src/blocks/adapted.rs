//! Rows of a pass with their adapters.

use lockstep_backend::{Axis, Backend, BackendError, Holds, Rows};

use super::allocate::Allocate;
use crate::split::crossing::Crossing;

/// Input of a projection: rows, and the places of their adapters.
pub(crate) struct Input<'a, T> {
    /// `[n, in]`.
    pub rows: &'a T,
    /// `[n, 1]`; `None` if no row of the pass has an adapter.
    pub places: Option<&'a T>,
}

impl<T> Clone for Input<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Input<'_, T> {}

/// Rows without adapters.
impl<'a, T> From<&'a T> for Input<'a, T> {
    fn from(rows: &'a T) -> Self {
        Self { rows, places: None }
    }
}

/// Places of the adapters of a pass's rows, as columns of activations. So they are chosen and
/// gathered as rows are: for wanted logits, and for all DP ranks.
pub(crate) struct RowAdapters<T> {
    /// Places of the tokens of this DP rank, `[n, 1]`.
    own: T,
    /// Places of the tokens whose logits are wanted, `[w, 1]`.
    wanted: T,
    /// Places of the rows of all DP ranks that an MLP runs over, `[a, 1]`; `None` with one DP
    /// rank.
    all: Option<T>,
    /// True if a row of the pass may have an adapter. Equal on all ranks that share products.
    active: bool,
}

impl<T> RowAdapters<T> {
    /// Allocates columns for passes of at most `tokens` tokens of each of `dp_size` DP ranks.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        device: &mut impl Allocate<Tensor = T>,
        tokens: usize,
        dp_size: usize,
    ) -> Result<Self, BackendError> {
        let mut column = |rows| device.activations(rows, 1, Holds::Operand);
        Ok(Self {
            own: column(tokens)?,
            wanted: column(tokens)?,
            all: match dp_size {
                1 => None,
                _ => Some(column(tokens.saturating_mul(dp_size))?),
            },
            active: false,
        })
    }

    /// Says whether rows of the next pass may have adapters.
    pub fn set_active(&mut self, active: bool) {
        self.active = active;
    }

    /// Returns the places of all tokens of this DP rank, if one may have an adapter.
    pub fn own(&self) -> Option<&T> {
        self.active.then_some(&self.own)
    }

    /// Returns the places of the wanted tokens of this DP rank, likewise.
    pub fn wanted(&self) -> Option<&T> {
        self.active.then_some(&self.wanted)
    }

    /// Returns the places of the rows that an MLP runs over, where rows of this DP rank have the
    /// places `own`.
    pub fn of_mlp<'a>(&'a self, own: Option<&'a T>) -> Option<&'a T> {
        own.map(|own| self.all.as_ref().unwrap_or(own))
    }

    /// Finds the places of the tokens of the staged batch, and those of all DP ranks' tokens where
    /// rows cross.
    ///
    /// # Errors
    /// [`BackendError::Collective`]; [`BackendError::Unsupported`] on a device without adapters.
    pub fn begin<B: Backend<Tensor = T>>(
        &mut self,
        backend: &mut B,
        axis: Axis,
        inputs: &B::Inputs,
        tokens: usize,
        crossing: Option<&Crossing>,
    ) -> Result<(), BackendError> {
        if !self.active {
            return Ok(());
        }
        backend.set_rows(&mut self.own, tokens);
        backend.adapter_places(inputs, &mut self.own)?;
        cross(backend, axis, &self.own, &mut self.all, crossing)
    }

    /// Finds the places of the `wanted` tokens of the staged batch among those of all, likewise.
    ///
    /// # Errors
    /// [`BackendError::Collective`].
    pub fn narrow<B: Backend<Tensor = T>>(
        &mut self,
        backend: &mut B,
        axis: Axis,
        inputs: &B::Inputs,
        wanted: usize,
        crossing: Option<&Crossing>,
    ) -> Result<(), BackendError> {
        if !self.active {
            return Ok(());
        }
        backend.set_rows(&mut self.wanted, wanted);
        let rows = Rows::Wanted(inputs, 0..wanted);
        backend.gather_rows(&self.own, rows, &mut self.wanted);
        cross(backend, axis, &self.wanted, &mut self.all, crossing)
    }

    /// Takes the places of the `wanted` tokens of a batch from those of all its tokens in `from`,
    /// as those of all tokens here.
    pub fn take_wanted<B: Backend<Tensor = T>>(
        &mut self,
        backend: &mut B,
        from: &Self,
        inputs: &B::Inputs,
        wanted: usize,
    ) {
        self.active = from.active;
        if self.active {
            backend.set_rows(&mut self.own, wanted);
            let rows = Rows::Wanted(inputs, 0..wanted);
            backend.gather_rows(&from.own, rows, &mut self.own);
        }
    }
}

/// Brings places of this DP rank's rows to all DP ranks, where rows cross.
fn cross<B: Backend>(
    backend: &mut B,
    axis: Axis,
    own: &B::Tensor,
    all: &mut Option<B::Tensor>,
    crossing: Option<&Crossing>,
) -> Result<(), BackendError> {
    let Some((all, crossing)) = all.as_mut().zip(crossing) else {
        return Ok(());
    };
    backend.set_rows(all, crossing.all());
    let Crossing { counts, first, .. } = crossing;
    backend.all_gather_rows(axis, own, *first, counts, all)
}
