use std::{collections::HashMap, fs, time::SystemTime};

use safetensors::{Dtype, serialize, tensor::TensorView};
use tempfile::TempDir;

use super::*;
use crate::{FileAccess, Safetensors};

struct Fixture {
    model: TempDir,
    packed: TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self {
            model: tempfile::tempdir().unwrap(),
            packed: tempfile::tempdir().unwrap(),
        }
    }

    /// Writes a file with one tensor of a segment and a half.
    fn write(&self, value: u8) -> PathBuf {
        let bytes = vec![value; SEGMENT * 3 / 2];
        let view = TensorView::new(Dtype::U8, vec![bytes.len()], &bytes).unwrap();
        let file = self.model.path().join("model.safetensors");
        let content = serialize(HashMap::from([("a".to_owned(), view)]), None).unwrap();
        fs::write(&file, content).unwrap();
        file
    }

    /// Returns the hash, and the number of bytes that were reported as read.
    fn hash(&self) -> (Hash, u64) {
        let files = Safetensors::open(self.model.path(), FileAccess::Mapped).unwrap();
        let folder = Folder::open(self.packed.path()).unwrap();
        let mut read = 0;
        let hashed = hash(&files, &folder, &mut |at| read = at.done).unwrap();
        assert_eq!(hashed.1, None);
        (hashed.0, read)
    }
}

#[test]
fn the_content_decides_and_not_its_date() {
    let fixture = Fixture::new();
    let file = fixture.write(1);
    let date = fs::metadata(&file).unwrap().modified().unwrap();
    let (one, read) = fixture.hash();
    assert_eq!(read, fs::metadata(&file).unwrap().len());
    fixture.write(2);
    fs::File::options()
        .write(true)
        .open(&file)
        .unwrap()
        .set_modified(date)
        .unwrap();
    let (two, _) = fixture.hash();
    assert_ne!(one, two);
    fixture.write(1);
    assert_eq!(fixture.hash().0, one);
    let moved = Fixture::new();
    moved.write(1);
    assert_eq!(moved.hash().0, one);
}

/// A remembered hash is used only while all fields of the file's stamp match.
#[test]
fn what_is_remembered_is_not_read_again() {
    let fixture = Fixture::new();
    let path = fixture.write(1);
    let (one, _) = fixture.hash();
    let folder = Folder::open(fixture.packed.path()).unwrap();
    let stamp = || Stamp::of(&path, &fs::File::open(&path).unwrap()).unwrap();
    let seen = |stamp: Stamp| Seen {
        stamp,
        hash: KNOWN.to_string(),
    };
    const KNOWN: Hash = Hash::from_bytes([5; 32]);
    let known = {
        let mut all = Hasher::new();
        all.update(KNOWN.as_bytes());
        all.finalize()
    };
    let name = name(&stamp().path);
    remember(&folder, &name, &seen(stamp())).unwrap();
    assert_eq!(fixture.hash(), (known, 0));
    type Change = fn(&mut Stamp);
    let changes: [Change; 6] = [
        |stamp| stamp.path.push("x"),
        |stamp| stamp.device += 1,
        |stamp| stamp.inode += 1,
        |stamp| stamp.size += 1,
        |stamp| stamp.modified.1 += 1,
        |stamp| stamp.changed.1 += 1,
    ];
    for change in changes {
        let mut stamp = stamp();
        change(&mut stamp);
        remember(&folder, &name, &seen(stamp)).unwrap();
        assert_eq!(fixture.hash().0, one);
    }
    fs::write(fixture.packed.path().join(&name), "{").unwrap();
    assert_eq!(fixture.hash().0, one);
}

#[test]
fn a_file_that_may_still_change_is_not_remembered() {
    let fixture = Fixture::new();
    let path = fixture.write(1);
    let stamp = Stamp::of(&path, &fs::File::open(&path).unwrap()).unwrap();
    let changed = SystemTime::UNIX_EPOCH
        + Duration::new(stamp.changed.0.unsigned_abs(), stamp.changed.1 as u32);
    assert!(!stamp.settled(changed) && !stamp.settled(changed + SETTLED));
    assert!(stamp.settled(changed + 2 * SETTLED));
}
