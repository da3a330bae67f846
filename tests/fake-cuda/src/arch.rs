//! Architectures of kernels, and images of compiled ones.

use std::path::{Path, PathBuf};

use crate::settings;

/// Beginning of every image.
const MAGIC: &str = "lockstep fake cuda image ";

/// Architecture that kernels are compiled for: 90 is compute capability 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Arch {
    pub(crate) number: u64,
    /// True for `sm_…`, machine code of one generation. False for `compute_…`, which drivers
    /// compile for any later generation.
    pub(crate) real: bool,
}

impl Arch {
    /// Architecture that NVRTC 13 compiles for without an option.
    pub(crate) const DEFAULT: Self = Self {
        number: 75,
        real: false,
    };

    /// Parses "sm_90a" or "compute_80".
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (real, rest) = match text.strip_prefix("sm_") {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix("compute_")?),
        };
        let digits = rest.trim_end_matches(['a', 'f']);
        let number = digits.parse().ok().filter(|number| *number >= 75)?;
        Some(Self { number, real })
    }

    /// Returns true if the device can run the code.
    pub(crate) fn runs(self) -> bool {
        let device = settings::capability();
        let generation = !self.real || self.number / 10 == device / 10;
        generation && self.number <= device
    }
}

/// A compiled program: its architecture, and the path of its shared object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) arch: Arch,
    pub(crate) object: PathBuf,
}

impl Image {
    /// Encodes the image as a text without zeros, like PTX.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Arch { number, real } = self.arch;
        let object = self.object.display();
        format!("{MAGIC}{number} {real} {object}").into_bytes()
    }

    pub(crate) fn decode(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(MAGIC)?;
        let (number, rest) = rest.split_once(' ')?;
        let (real, object) = rest.split_once(' ')?;
        let arch = Arch {
            number: number.parse().ok()?,
            real: real.parse().ok()?,
        };
        let object = Path::new(object).to_owned();
        Some(Self { arch, object })
    }
}

#[cfg(test)]
mod tests {
    use super::{Arch, Image};

    #[test]
    fn reads_the_names_that_nvrtc_takes() {
        for (text, expected) in [
            ("sm_80", Some((80, true))),
            ("sm_90a", Some((90, true))),
            ("sm_100f", Some((100, true))),
            ("compute_120", Some((120, false))),
            ("sm_70", None),
            ("sm_", None),
            ("90", None),
        ] {
            let expected = expected.map(|(number, real)| Arch { number, real });
            assert_eq!(Arch::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn machine_code_stays_in_its_generation() {
        let runs = |text| Arch::parse(text).expect("a name").runs();
        assert!(runs("sm_90") && runs("compute_80"));
        assert!(!runs("sm_80") && !runs("sm_100") && !runs("compute_100"));
    }

    #[test]
    fn images_come_back_from_bytes() {
        let image = Image {
            arch: Arch::DEFAULT,
            object: "/a folder/kernels.so".into(),
        };
        let text = String::from_utf8(image.encode()).expect("a text");
        assert_eq!(Image::decode(&text), Some(image));
        assert_eq!(Image::decode("\u{7f}ELF"), None);
    }
}
