//! The operations a transformer needs on one device.
