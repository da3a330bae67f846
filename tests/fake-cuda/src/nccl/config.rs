//! `ncclConfig_t`, in the length of the caller's version.

use std::ffi::c_int;

use crate::abi::In;

/// First version with channels in its configuration: 2.17.
const CHANNELS: c_int = 21_700;
/// Places of numbers, in units of four bytes. Eight bytes of size and four of a mark come
/// first.
const VERSION: usize = 3;
const BLOCKING: usize = 4;
const LEAST_CHANNELS: usize = 6;
const MOST_CHANNELS: usize = 7;

/// Wishes of a caller for a communicator.
pub(super) struct Config {
    /// True if calls wait for their operations.
    pub(super) blocking: bool,
    /// Smallest and largest number of channels, where given.
    pub(super) channels: [Option<usize>; 2],
}

impl Config {
    /// Reads the caller's configuration; without one, the library's defaults hold.
    pub(super) fn read(at: In<c_int>) -> Self {
        let bytes = at.get(0).unwrap_or(0) as usize;
        let held = |place: usize| (place + 1) * size_of::<c_int>() <= bytes;
        let number = |place| at.get(place).filter(|_| held(place));
        let knows = number(VERSION).is_some_and(|version| version >= CHANNELS);
        // A caller that leaves a number open sets the least number that there is.
        let said = |place| {
            let number = number(place).filter(|_| knows)?;
            usize::try_from(number).ok()
        };
        Self {
            blocking: number(BLOCKING) != Some(0),
            channels: [said(LEAST_CHANNELS), said(MOST_CHANNELS)],
        }
    }
}
