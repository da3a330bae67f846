//! Adapters on the wire.

use lockstep_types::adapter::Adapter;

use crate::{WireError, pb::lockstep as pb};

impl TryFrom<pb::Adapter> for Adapter {
    type Error = WireError;
    fn try_from(wire: pb::Adapter) -> Result<Self, WireError> {
        let place = wire.place.try_into();
        Ok(Self {
            place: place.map_err(|_| WireError::Missing("adapter.place"))?,
            content: u128::from(wire.content_high) << 64 | u128::from(wire.content_low),
        })
    }
}

impl From<Adapter> for pb::Adapter {
    fn from(adapter: Adapter) -> Self {
        let (content_low, content_high) = adapter.content_halves();
        Self {
            place: adapter.place.into(),
            content_low,
            content_high,
        }
    }
}
