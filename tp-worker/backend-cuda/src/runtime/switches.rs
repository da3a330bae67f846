//! Switches of how kernels overlap, from the environment of a rank.

use std::ffi::{OsStr, OsString};

use crate::error::CudaError;
use crate::version::Version;

/// Variable that turns programmatic dependent launch off, with the value 0, or asks for it, with
/// the value 1.
const OVERLAP: &str = "LOCKSTEP_CUDA_PDL";
/// Variable that says when a product lets the next kernel begin: `first`, or `half`.
const TRIGGER: &str = "LOCKSTEP_CUDA_PDL_TRIGGER";
/// Variable that lets attention fetch the weights of the product behind it, with the value 1.
const FETCH: &str = "LOCKSTEP_CUDA_PREFETCH";
/// Lowest compute capability with programmatic dependent launch, and with prefetches to the L2
/// cache.
const LEAST_CAPABILITY: Version = Version { major: 9, minor: 0 };
/// First driver, by the version of CUDA that it is for, that records such launches in graphs.
const LEAST_DRIVER: Version = Version {
    major: 12,
    minor: 3,
};

/// Switches of the overlap of kernels on a GPU. No bit of a result depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Switches {
    /// Kernels may begin before the kernels before them have ended, by programmatic dependent
    /// launch.
    pub overlaps: bool,
    /// Products let the kernel behind them begin when half of their inputs are on their way,
    /// instead of at once.
    pub triggers_at_half: bool,
    /// Attention of few tokens fetches the weights of the product behind it to the L2 cache.
    pub fetches_ahead: bool,
}

impl Switches {
    /// Reads the switches for a GPU. `value` returns the value of a variable, if it is set.
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] for a value that a switch does not have, or that GPU or driver
    /// can't obey.
    pub fn read(
        capability: Version,
        driver: Version,
        value: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, CudaError> {
        let [asked, trigger, fetch] = [OVERLAP, TRIGGER, FETCH].map(value);
        let overlaps = overlaps(capability, driver, asked.as_deref())?;
        Ok(Self {
            overlaps,
            triggers_at_half: triggers_at_half(overlaps, trigger.as_deref())?,
            fetches_ahead: fetches_ahead(capability, fetch.as_deref())?,
        })
    }
}

/// Returns true if kernels may begin early, for the value of [`OVERLAP`].
fn overlaps(
    capability: Version,
    driver: Version,
    asked: Option<&OsStr>,
) -> Result<bool, CudaError> {
    let able = capability >= LEAST_CAPABILITY && driver >= LEAST_DRIVER;
    let Some(asked) = asked else {
        return Ok(able);
    };
    match asked.to_str() {
        Some("0") => Ok(false),
        Some("1") if able => Ok(true),
        Some("1") => Err(CudaError::Unsupported(format!(
            "{OVERLAP} is 1, but kernels begin early from compute capability {LEAST_CAPABILITY} \
             and drivers for CUDA {LEAST_DRIVER} on: this GPU's is {capability}, its driver is \
             for CUDA {driver}; leave {OVERLAP} out"
        ))),
        _ => Err(CudaError::Unsupported(format!(
            "{OVERLAP} is `{}`: give 0 to let no kernel begin before the one before it has ended, or 1",
            asked.display()
        ))),
    }
}

/// Returns true if products trigger at half, for the value of [`TRIGGER`].
fn triggers_at_half(overlaps: bool, asked: Option<&OsStr>) -> Result<bool, CudaError> {
    let Some(asked) = asked else {
        return Ok(false);
    };
    match asked.to_str() {
        Some("first") => Ok(false),
        Some("half") if overlaps => Ok(true),
        Some("half") => Err(CudaError::Unsupported(format!(
            "{TRIGGER} is `half`, but no kernel begins here before the one before it has ended: \
             leave {TRIGGER} out, or {OVERLAP} where that is 0"
        ))),
        _ => Err(CudaError::Unsupported(format!(
            "{TRIGGER} is `{}`: give `first` to let the kernel behind a product begin at once, or \
             `half` to let it begin when half of the product's inputs are on their way",
            asked.display()
        ))),
    }
}

/// Returns true if attention fetches ahead, for the value of [`FETCH`].
fn fetches_ahead(capability: Version, asked: Option<&OsStr>) -> Result<bool, CudaError> {
    let Some(asked) = asked else {
        return Ok(false);
    };
    match asked.to_str() {
        Some("0") => Ok(false),
        Some("1") if capability >= LEAST_CAPABILITY => Ok(true),
        Some("1") => Err(CudaError::Unsupported(format!(
            "{FETCH} is 1, but GPUs fetch to their L2 cache from compute capability \
             {LEAST_CAPABILITY} on, and this GPU's is {capability}: leave {FETCH} out"
        ))),
        _ => Err(CudaError::Unsupported(format!(
            "{FETCH} is `{}`: give 1 to let attention fetch the weights of the product behind it, or 0",
            asked.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, os::unix::ffi::OsStringExt as _};

    use super::{FETCH, OVERLAP, Switches, TRIGGER, Version};

    /// The switches that a GPU has with these values, or the error.
    fn read(
        (major, minor): (u32, u32),
        driver: (u32, u32),
        values: &[(&str, &str)],
    ) -> Result<[bool; 3], String> {
        let driver = Version {
            major: driver.0,
            minor: driver.1,
        };
        let value = |name: &str| {
            let given = values.iter().find(|(of, _)| *of == name)?;
            Some(OsString::from(given.1))
        };
        let found = Switches::read(Version { major, minor }, driver, value);
        let found = found.map_err(|error| error.to_string())?;
        Ok([found.overlaps, found.triggers_at_half, found.fetches_ahead])
    }

    #[test]
    fn kernels_overlap_where_device_driver_and_user_let_them() {
        let able = |capability, driver, asked: Option<&str>| {
            let values: Vec<_> = asked.map(|asked| (OVERLAP, asked)).into_iter().collect();
            read(capability, driver, &values).map(|[overlaps, ..]| overlaps)
        };
        assert_eq!(able((9, 0), (12, 3), None), Ok(true));
        assert_eq!(able((12, 0), (13, 0), Some("1")), Ok(true));
        assert_eq!(able((9, 0), (13, 0), Some("0")), Ok(false));
        assert_eq!(able((8, 9), (13, 0), None), Ok(false));
        assert_eq!(able((9, 0), (12, 2), None), Ok(false));
        assert_eq!(able((8, 9), (13, 0), Some("0")), Ok(false));
        // What is asked for is done or refused.
        for (capability, driver) in [((8, 9), (13, 0)), ((9, 0), (12, 2))] {
            let error = able(capability, driver, Some("1")).unwrap_err();
            for (major, minor) in [capability, driver] {
                assert!(error.contains(&format!("{major}.{minor}")), "{error}");
            }
            assert!(error.contains("leave LOCKSTEP_CUDA_PDL out"), "{error}");
        }
        assert!(able((9, 0), (13, 0), Some("no")).is_err());
    }

    #[test]
    fn products_trigger_and_attention_fetches_as_asked_or_not_at_all() {
        let new = |values: &[(&str, &str)]| read((9, 0), (13, 0), values);
        assert_eq!(new(&[]), Ok([true, false, false]));
        assert_eq!(new(&[(TRIGGER, "first"), (FETCH, "0")]), new(&[]));
        let both = [(TRIGGER, "half"), (FETCH, "1")];
        assert_eq!(new(&both), Ok([true, true, true]));
        // A fetch needs no kernel that begins early.
        let apart = [(OVERLAP, "0"), (FETCH, "1")];
        assert_eq!(new(&apart), Ok([false, false, true]));
        let old = |values: &[(&str, &str)]| read((8, 9), (13, 0), values);
        let unable = [(TRIGGER, "first"), (FETCH, "0")];
        assert_eq!(old(&unable), Ok([false; 3]));
        for (found, remedy) in [
            (
                new(&[(OVERLAP, "0"), (TRIGGER, "half")]),
                "or LOCKSTEP_CUDA_PDL where that is 0",
            ),
            (
                old(&[(TRIGGER, "half")]),
                "leave LOCKSTEP_CUDA_PDL_TRIGGER out",
            ),
            (old(&[(FETCH, "1")]), "leave LOCKSTEP_CUDA_PREFETCH out"),
            (new(&[(TRIGGER, "1")]), "give `first`"),
            (new(&[(FETCH, "on")]), "give 1"),
        ] {
            let error = found.unwrap_err();
            assert!(error.contains(remedy), "{error}");
        }
    }

    #[test]
    fn a_value_that_is_no_text_is_refused() {
        let version = Version {
            major: 13,
            minor: 0,
        };
        for variable in [OVERLAP, TRIGGER, FETCH] {
            let value = |name: &str| (name == variable).then(|| OsString::from_vec(vec![0xff]));
            let error = Switches::read(version, version, value).unwrap_err();
            assert!(error.to_string().contains(variable), "{error}");
        }
    }
}
