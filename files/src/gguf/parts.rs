//! Files that a model is split over: `NAME-00001-of-00003.gguf` and so on. The first has all keys.

use std::fs::File;
use std::io;

use super::Place;
use super::bytes::FileSource;
use super::error::GgufError;
use super::header::Header;
use crate::{LARGEST_TOKENIZER, MOST_WEIGHT_FILES, on_reader_thread};

/// Keys of a part: its number from zero on, the number of parts, and that of all tensors.
const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// The open files of a model and their headers.
pub(crate) struct Parts {
    /// Files in their order; there is one at least.
    pub files: Vec<(File, Header)>,
}

impl Parts {
    /// Opens the files of the model whose first file is at `place`.
    ///
    /// # Errors
    /// [`GgufError`]: a part is missing, or belongs to another model.
    pub fn open(place: &Place) -> Result<Self, GgufError> {
        let first = open(place, &place.name)?;
        let header = &first.1;
        let count = header.unsigned(COUNT)?.unwrap_or(0).max(1);
        let wrong = |reason: String| GgufError::damaged(&place.name, reason);
        if count == 1 {
            return Ok(Self { files: vec![first] });
        }
        if count > MOST_WEIGHT_FILES as u64 {
            return Err(wrong(format!(
                "it has {count} parts, more than {MOST_WEIGHT_FILES}"
            )));
        }
        let number = header.unsigned(NUMBER)?.unwrap_or(0);
        if number != 0 {
            let reason = format!("it is part {} of {count}; give the first part", number + 1);
            return Err(GgufError::unserved(&place.name, reason));
        }
        let named = number_of(&place.name).filter(|named| *named == (1, count));
        if named.is_none() {
            let reason = format!(
                "it is part 1 of {count}: its name should end in -00001-of-{count:05}.gguf"
            );
            return Err(wrong(reason));
        }
        let expected = header.unsigned(TENSORS)?;
        let mut bytes = header.len();
        let mut files = vec![first];
        for number in 1..count {
            let name = part_name(&place.name, number + 1, count);
            let (file, header) = open(place, &name)?;
            bytes += header.len();
            if bytes > LARGEST_TOKENIZER {
                let reason = format!("the headers have more than {LARGEST_TOKENIZER} bytes");
                return Err(GgufError::damaged(&name, reason));
            }
            let own = [header.unsigned(NUMBER)?, header.unsigned(COUNT)?];
            if own != [Some(number), Some(count)] {
                let reason = format!("it should be part {} of {count}", number + 1);
                return Err(GgufError::damaged(&name, reason));
            }
            files.push((file, header));
        }
        let found: usize = files.iter().map(|(_, header)| header.tensors.len()).sum();
        if expected.is_some_and(|expected| expected != found as u64) {
            return Err(wrong(format!(
                "its parts have {found} tensors together, not {expected:?}"
            )));
        }
        Ok(Self { files })
    }

    /// Returns the header with the model's keys.
    pub fn first(&self) -> &Header {
        &self.files[0].1
    }

    /// Returns the tensor `name` with its file.
    pub fn tensor(&self, name: &str) -> Option<(&File, &super::header::Tensor)> {
        let mut files = self.files.iter();
        files.find_map(|(file, header)| Some((file, header.tensors.get(name)?)))
    }
}

fn open(place: &Place, name: &str) -> Result<(File, Header), GgufError> {
    let failed = |source: io::Error| GgufError::Read {
        name: name.to_owned(),
        source,
    };
    let file = crate::open(&place.folder, name).map_err(failed)?;
    let own = file.try_clone().map_err(failed)?;
    let size = on_reader_thread(move || Ok(own.metadata()?.len())).map_err(failed)?;
    let header = Header::read(name, &FileSource { file: &file, size })?;
    Ok((file, header))
}

/// Returns the number of a part, from one on, and the number of parts, as a file's name says
/// them; `None` for the name of a whole model.
pub(super) fn number_of(name: &str) -> Option<(u64, u64)> {
    let stem = name.strip_suffix(super::ENDING)?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (_, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| {
        let plain = text.len() == 5 && text.bytes().all(|digit| digit.is_ascii_digit());
        plain.then(|| text.parse().ok()).flatten()
    };
    Some((digits(number)?, digits(count)?))
}

/// Returns the name of another part, from that of one.
fn part_name(name: &str, number: u64, count: u64) -> String {
    let behind = "-00001-of-00001.gguf".len();
    let begin = &name[..name.len().saturating_sub(behind)];
    format!("{begin}-{number:05}-of-{count:05}.gguf")
}
