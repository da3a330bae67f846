//! Errors of opening and asking devices.

/// The reason why a device can't be opened. Each device has reasons of its own.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct DeviceError(Box<dyn std::error::Error + Send + Sync>);

impl DeviceError {
    /// Wraps the device's own reason.
    pub fn new(reason: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self(Box::new(reason))
    }
}
