//! EAGLE's heads: one layer over the target's hidden states.

use lockstep_backend::Backend;
use lockstep_model::{CaptureSpec, EagleHead, HiddenSource};

use crate::{
    Build, Device, DraftError, DraftRow, Drafter, Drafts, ExtendRow, Pass,
    propose::{Growth, Proposer},
};

/// Drafts with an EAGLE-1/2 or EAGLE-3 head.
///
/// Position `i` of its cache holds the pair of the target's features at `i` and
/// token `i + 1`; what comes out after the last pair says which token follows
/// that one, and starts the next draft.
pub struct EagleDrafter<B: Backend> {
    head: Head<B>,
    growth: Growth,
    /// Rows of features of the pairs taken in.
    features: Vec<u32>,
    /// Last pairs of requests that draft next: their rows and slots.
    roots: (Vec<u32>, Vec<u32>),
    pass: Pass,
    kv_bytes: usize,
}

/// The head, its cache and its logits.
struct Head<B: Backend> {
    head: EagleHead<B>,
    cache: B::KvCache,
    /// The target's ids of the head's tokens.
    ids: Vec<u32>,
    logits: Vec<f32>,
    sources: Vec<HiddenSource>,
}

impl<B: Backend> EagleDrafter<B> {
    /// Loads the configured head.
    ///
    /// # Errors
    /// [`DraftError`]: its files, or the memory.
    pub fn load(build: Build<'_, B>) -> Result<Self, DraftError> {
        let (draft, chooser) = (build.draft()?, build.chooser());
        let Build {
            backend,
            target,
            requests,
            limits,
            pages,
            page_size,
            kv_dtype,
            progress,
            ..
        } = build;
        let head = EagleHead::load(backend, draft, target, requests, limits, progress)?;
        let shape = head.kv_shape(pages, page_size, kv_dtype);
        Ok(Self {
            kv_bytes: shape.bytes_per_token() * pages * page_size,
            head: Head {
                cache: backend.kv_cache(&shape)?,
                ids: (0..head.vocab() as u32)
                    .map(|id| head.target_token(id))
                    .collect(),
                head,
                logits: Vec::new(),
                sources: Vec::with_capacity(limits.max_tokens),
            },
            growth: Growth::new(requests, limits.max_tokens, chooser),
            features: Vec::with_capacity(limits.max_tokens),
            roots: (Vec::with_capacity(requests), Vec::with_capacity(requests)),
            pass: Pass::new(requests, limits.max_tokens),
        })
    }
}

impl<B: Backend> Drafter<B> for EagleDrafter<B> {
    fn capture(&self) -> CaptureSpec {
        self.head.head.capture()
    }

    fn bytes(&self, backend: &B) -> (usize, usize) {
        (self.head.head.weight_bytes(backend), self.kv_bytes)
    }

    fn draft(
        &mut self,
        device: &mut Device<'_, B>,
        rows: &[DraftRow],
        drafts: &mut Drafts,
    ) -> Result<(), DraftError> {
        self.growth.draft(&mut self.head, device, rows, drafts)
    }

    fn extend(&mut self, device: &mut Device<'_, B>, rows: &[ExtendRow]) -> Result<(), DraftError> {
        self.pass.clear();
        self.features.clear();
        self.roots.0.clear();
        self.roots.1.clear();
        for row in rows {
            let tokens = device.requests.tokens(row.slot);
            // Nothing follows the last token of a text that is only scored.
            let pairs = row.end().min(tokens.len() - 1).saturating_sub(row.start);
            if pairs == 0 {
                continue;
            }
            self.pass.begin(row.start, row.pages_start);
            let next = &tokens[row.start + 1..][..pairs];
            self.pass.push_chain(device.pages, next, row.start);
            let rows = &device.feature_rows[row.features.clone()];
            self.features.extend_from_slice(&rows[..pairs]);
            if row.ends {
                self.roots.0.push(self.pass.len() as u32 - 1);
                self.roots.1.push(row.slot as u32);
            }
        }
        let (Some(features), false) = (device.features, self.pass.is_empty()) else {
            return Ok(());
        };
        let Head { head, cache, .. } = &mut self.head;
        let batch = self.pass.batch(device.pages);
        head.feed_features(device.backend, features, &self.features)?;
        head.forward(device.backend, cache, device.tables, &batch)?;
        head.keep_roots(device.backend, &self.roots.0, &self.roots.1)?;
        Ok(())
    }
}

impl<B: Backend> Head<B> {
    fn read_logits(&mut self, device: &mut Device<'_, B>) -> Result<(), DraftError> {
        let logits = self
            .head
            .logits(device.backend, device.tables, &self.sources)?;
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        Ok(())
    }
}

impl<B: Backend> Proposer<B> for Head<B> {
    fn vocab(&self) -> usize {
        self.head.vocab()
    }

    fn ids(&self) -> Option<&[u32]> {
        Some(&self.ids)
    }

    fn first_cell(&self) -> usize {
        0
    }

    fn first(&mut self, device: &mut Device<'_, B>, rows: &[DraftRow]) -> Result<(), DraftError> {
        self.sources.clear();
        let roots = rows.iter().map(|row| HiddenSource::Root(row.slot as u32));
        self.sources.extend(roots);
        self.read_logits(device)
    }

    fn next(
        &mut self,
        device: &mut Device<'_, B>,
        pass: &Pass,
        sources: &[HiddenSource],
    ) -> Result<(), DraftError> {
        let batch = pass.batch(device.pages);
        self.head.feed_hidden(device.backend, sources)?;
        self.head
            .forward(device.backend, &mut self.cache, device.tables, &batch)?;
        self.sources.clear();
        let wanted = pass.wanted().iter().map(|row| HiddenSource::Output(*row));
        self.sources.extend(wanted);
        self.read_logits(device)
    }

    fn logits(&self) -> &[f32] {
        &self.logits
    }
}
