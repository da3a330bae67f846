use std::io;

use super::*;
use crate::gguf::samples::Sample;

/// Bytes in memory, of which no more are read than there are.
struct Memory(Vec<u8>);

impl Source for Memory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, at: u64, length: usize) -> io::Result<Vec<u8>> {
        let at = at as usize;
        Ok(self.0[at..at + length].to_vec())
    }
}

fn read(bytes: &[u8]) -> Result<Header, GgufError> {
    Header::read("x.gguf", &Memory(bytes.to_vec()))
}

fn refused(bytes: &[u8]) -> String {
    read(bytes).map(drop).expect_err("refused").to_string()
}

#[test]
fn keys_and_tensors_are_found() {
    let sample = Sample::empty()
        .number("general.alignment", 32)
        .float("a.float", 1e-6)
        .flag("a.flag", true)
        .text("a.text", "ü")
        .texts("a.texts", &["x", "", "yz"])
        .list("a.list", 5, &[(-1i32).to_le_bytes(), 7i32.to_le_bytes()])
        .tensor("one", 0, &[3], &[0; 12])
        .tensor("two", 12, &[256, 2], &[0; 288]);
    let bytes = sample.bytes();
    for version in [2, 3] {
        let mut bytes = bytes.clone();
        bytes[4] = version;
        let header = read(&bytes).expect("a header");
        assert_eq!(header.number("a.float").unwrap(), Some(1e-6));
        assert_eq!(header.flag("a.flag").unwrap(), Some(true));
        assert_eq!(header.text("a.text").unwrap(), Some("ü"));
        assert_eq!(header.texts("a.texts").unwrap().unwrap(), ["x", "", "yz"]);
        assert_eq!(header.numbers("a.list").unwrap().unwrap(), [-1.0, 7.0]);
        assert_eq!(header.unsigned("no").unwrap(), None);
        assert!(header.unsigned("a.text").is_err() && header.texts("a.list").is_err());
        let (one, two) = (&header.tensors["one"], &header.tensors["two"]);
        assert_eq!((one.kind.name, &one.shape[..]), ("F32", &[3][..]));
        assert_eq!((two.kind.name, &two.shape[..]), ("Q4_K", &[2, 256][..]));
        let size = bytes.len() as u64;
        assert_eq!(two.bytes, size - 288..size);
        assert_eq!(one.bytes, size - 288 - 32..size - 288 - 32 + 12);
    }
}

/// Items take more memory than their bytes.
#[test]
fn lists_beyond_any_vocabulary_are_not_read() {
    let items = vec![[1u8]; (1 << 22) + 1];
    let header = read(&Sample::empty().list("a.list", 0, &items).bytes()).expect("a header");
    let error = header.list("a.list").expect_err("too long").to_string();
    assert!(
        error.contains("has 4194305 items, more than 4194304"),
        "{error}"
    );
}

/// Bytes of a header with these numbers of tensors and keys, and `rest` behind.
fn header(tensors: u64, keys: u64, rest: &[&[u8]]) -> Vec<u8> {
    let numbers = [tensors.to_le_bytes(), keys.to_le_bytes()].concat();
    [b"GGUF\x03\0\0\0", &numbers[..], &rest.concat()].concat()
}

#[test]
fn lies_are_refused_in_words() {
    let one = 1u64.to_le_bytes();
    let most = u64::MAX.to_le_bytes();
    let tensor =
        |kind: u32, dims: &[u64]| Sample::empty().tensor("x", kind, dims, &[0; 64]).bytes();
    let mut moved = tensor(0, &[4]);
    let offset = header(1, 0, &[&one, b"x", &[1, 0, 0, 0], &one, &[0; 4]]).len();
    moved[offset] = 16;
    for (bytes, reason) in [
        (b"GGUF".to_vec(), "it ends at byte 4"),
        (b"GGML\x03\0\0\0".to_vec(), "it is no GGUF file"),
        (b"GGUF\x01\0\0\0".to_vec(), "version 1"),
        (b"GGUF\0\0\0\x03".to_vec(), "big-endian"),
        (header(1, 0, &[]), "it ends at byte 24"),
        (
            header(0, u64::MAX, &[]),
            "should have 18446744073709551615 keys",
        ),
        (
            header(u64::MAX, 0, &[]),
            "should have 18446744073709551615 tensors",
        ),
        (
            header(0, 1, &[&most]),
            "a name has 18446744073709551615 bytes",
        ),
        (header(0, 1, &[&one, b"\xff"]), "a name is not UTF-8"),
        (
            header(0, 1, &[&one, b"k", &[8, 0, 0, 0], &most]),
            "it ends at byte",
        ),
        (
            header(0, 1, &[&one, b"k", &[13, 0, 0, 0]]),
            "key k: it has the unknown type 13",
        ),
        (
            header(0, 1, &[&one, b"k", &[7, 0, 0, 0], &[2]]),
            "neither true nor false",
        ),
        (
            header(0, 1, &[&one, b"k", &[9, 0, 0, 0], &[8, 0, 0, 0], &most]),
            "should have 18446744073709551615 texts",
        ),
        (
            header(0, 1, &[&one, b"k", &[9, 0, 0, 0], &[12, 0, 0, 0], &most]),
            "it has 18446744073709551615 items",
        ),
        (
            header(0, 1, &[&one, b"k", &[9, 0, 0, 0], &[9, 0, 0, 0], &one]),
            "items of the unknown type 9",
        ),
        (
            Sample::empty().number("general.alignment", 33).bytes(),
            "no power of two",
        ),
        (tensor(0, &[]), "has 0 dimensions"),
        (tensor(0, &[1; 5]), "has 5 dimensions"),
        (tensor(0, &[4, 0]), "has the dimensions [4, 0]"),
        (tensor(0, &[1 << 32, 1 << 32]), "has no size"),
        (tensor(0, &[u64::MAX]), "has no size"),
        (tensor(0, &[17]), "it was cut off"),
        (tensor(8, &[33]), "has no size"),
        (tensor(4, &[4]), "the unknown type 4"),
        (moved, "no multiple of 32"),
    ] {
        let found = refused(&bytes);
        assert!(
            found.starts_with("x.gguf") && found.contains(reason),
            "{reason}: {found}"
        );
    }
    let twice = [&one[..], b"k", &[7, 0, 0, 0], &[1]].concat();
    assert!(refused(&header(0, 2, &[&twice, &twice])).contains("key k is there twice"));
}

/// Numbers without order, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }
}

/// Changes bytes, numbers and the length of a whole file. Whatever comes of that is an error or a
/// header whose tensors lie in the file. More files by `LOCKSTEP_GGUF_CASES`.
#[test]
fn changed_files_are_errors_or_stay_inside_of_themselves() {
    let cases = std::env::var("LOCKSTEP_GGUF_CASES");
    let cases: u64 = cases.map_or(20_000, |cases| cases.parse().expect("a number"));
    let whole = Sample::llama().bytes();
    // Most of the file is data, which nobody reads here.
    let names = whole.len()
        - read(&whole)
            .expect("a header")
            .tensors
            .values()
            .map(|tensor| (tensor.bytes.end - tensor.bytes.start) as usize)
            .sum::<usize>();
    let (mut errors, mut headers) = (0, 0);
    for case in 0..cases {
        let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (case + 1));
        let mut bytes = whole.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(names);
            match random.below(4) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = random.below(256) as u8,
                2 => {
                    let number = [0, 1, u64::MAX, 1 << 63, 1 << 32][random.below(5)];
                    let end = (at + 8).min(bytes.len());
                    bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
                }
                _ => bytes.truncate(random.below(bytes.len()) + 1),
            }
            if bytes.len() < names {
                break;
            }
        }
        match read(&bytes) {
            Err(error) => {
                errors += 1;
                assert!(error.to_string().len() < 4_000);
            }
            Ok(header) => {
                headers += 1;
                let inside = |tensor: &Tensor| tensor.bytes.end <= bytes.len() as u64;
                assert!(header.tensors.values().all(inside), "case {case}");
                for key in header.keys() {
                    let _ = (header.texts(key), header.list(key), header.number(key));
                }
            }
        }
    }
    assert!(
        errors > 0 && headers > 0,
        "{errors} errors, {headers} headers"
    );
}
