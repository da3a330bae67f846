//! What goes wrong with a device.

/// Why a device can't be opened; each has reasons of its own.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DeviceError(Box<dyn std::error::Error + Send + Sync>);

impl DeviceError {
    /// For the device's own reason.
    pub fn new(reason: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Box::new(reason))
    }
}
