//! `ncclConfig_t`, of which callers show as much as their version has.

use std::ffi::c_int;

use crate::abi::In;

/// The first version whose configurations know channels: 2.17.
const CHANNELS: c_int = 21_700;
/// Places of numbers, of four bytes each: behind eight bytes of size and four of a mark.
const VERSION: usize = 3;
const BLOCKING: usize = 4;
const LEAST_CHANNELS: usize = 6;
const MOST_CHANNELS: usize = 7;

/// What callers want of a communicator.
pub(super) struct Config {
    /// Calls wait for what they ask for.
    pub(super) blocking: bool,
    /// At least and at most, where that is said.
    pub(super) channels: [Option<usize>; 2],
}

impl Config {
    /// Reads what the caller shows; without it, all is as the library likes it.
    pub(super) fn read(at: In<c_int>) -> Self {
        let bytes = at.get(0).unwrap_or(0) as usize;
        let held = |place: usize| (place + 1) * size_of::<c_int>() <= bytes;
        let number = |place| at.get(place).filter(|_| held(place));
        let knows = number(VERSION).is_some_and(|version| version >= CHANNELS);
        // Who leaves it open says the least number that there is.
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
