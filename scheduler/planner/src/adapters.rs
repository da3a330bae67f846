//! Requests of each adapter.

use lockstep_types::adapter::Adapter;

use crate::{IntegrityError, error::total, request::RequestTable};

/// Number of requests that have not ended, by the place of their adapter. A place whose adapter
/// is unloaded may hold another one when its number is 0: a request that has ended has no row in
/// any later plan.
#[derive(Debug, Default)]
pub(crate) struct AdapterUse {
    requests: Vec<u32>,
}

impl AdapterUse {
    /// Counts a request that begins.
    pub fn begin(&mut self, adapter: Option<Adapter>) {
        let Some(Adapter { place, .. }) = adapter else {
            return;
        };
        let place = usize::from(place);
        if place >= self.requests.len() {
            self.requests.resize(place + 1, 0);
        }
        self.requests[place] += 1;
    }

    /// Counts a request that has ended.
    pub fn end(&mut self, adapter: Option<Adapter>) {
        if let Some(Adapter { place, .. }) = adapter {
            self.requests[usize::from(place)] -= 1;
        }
    }

    /// Returns the number of requests of a place's adapter.
    pub fn requests(&self, place: u16) -> u32 {
        self.requests.get(usize::from(place)).copied().unwrap_or(0)
    }

    /// Checks the numbers against the requests.
    pub fn check(&self, requests: &RequestTable) -> Result<(), IntegrityError> {
        let mut counted = Self::default();
        let all = requests.iter();
        all.for_each(|(_, request)| counted.begin(request.rest.generation.adapter));
        for place in 0..u16::try_from(self.requests.len()).unwrap_or(u16::MAX) {
            let (kept, counted) = (self.requests(place), counted.requests(place));
            total("requests of an adapter", kept.into(), counted.into())?;
        }
        Ok(())
    }
}
