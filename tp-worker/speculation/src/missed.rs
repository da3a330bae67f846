//! Features of positions that a drafter misses while nothing is drafted.

use lockstep_backend::{Backend, BackendError};
use lockstep_model::FeatureWindow;

use crate::{Device, ExtendRow, span::Span};

/// Features of each slot's last positions that the drafter has not taken in.
pub(crate) struct Missed<B: Backend> {
    /// `None` if the drafter takes in every step.
    window: Option<FeatureWindow<B>>,
    /// Rows of features that move to the window, and their rows there.
    moved: (Vec<u32>, Vec<u32>),
}

impl<B: Backend> Missed<B> {
    /// Allocates room for `window` positions of each of `requests` slots, of `width` columns
    /// each; for none if `window` is 0.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn new(
        backend: &mut B,
        requests: usize,
        window: usize,
        width: usize,
    ) -> Result<Self, BackendError> {
        let kept = requests * window.max(1);
        Ok(Self {
            window: match window {
                0 => None,
                window => Some(FeatureWindow::new(backend, requests, window, width)?),
            },
            moved: (Vec::with_capacity(kept), Vec::with_capacity(kept)),
        })
    }

    /// Returns the kept features; `None` if the drafter takes in every step.
    pub fn window(&self) -> Option<&FeatureWindow<B>> {
        self.window.as_ref()
    }

    /// Keeps the features of the rows selected by `missed`, which the drafter does not take in.
    /// The window keeps the last positions of each request.
    pub fn keep(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[ExtendRow],
        missed: impl Fn(&ExtendRow) -> bool,
    ) {
        let (Some(window), Some(features)) = (&mut self.window, device.features) else {
            return;
        };
        let (from, to) = &mut self.moved;
        from.clear();
        to.clear();
        for row in rows.iter().filter(|row| missed(row)) {
            let first = row.start.max(row.end().saturating_sub(window.positions()));
            let rows = &device.feature_rows[row.features.clone()][first - row.start..];
            from.extend_from_slice(rows);
            to.extend((first..row.end()).map(|position| window.row(row.slot, position)));
        }
        if !from.is_empty() {
            window.keep(device.backend, features, from, to);
        }
    }

    /// Returns the span after which positions up to `to` can be taken in, of a slot whose
    /// `span` has been. Returns `None` if the window has neither all missed positions nor the
    /// beginning of a page.
    pub fn reach(&self, span: Span, to: usize, page_size: usize) -> Option<Span> {
        let window = self.window.as_ref()?.positions();
        if to.saturating_sub(span.to) <= window {
            return Some(span);
        }
        let from = (to - window).next_multiple_of(page_size);
        (from < to).then(|| Span::beginning(from))
    }
}
