use super::*;

const CONTENT: &[u8] = b"all that it has";

/// A folder of blobs, and the blob that is loaded.
struct Scene {
    folder: tempfile::TempDir,
    blob: PathBuf,
    listed: ListedFile,
}

fn scene() -> Scene {
    let mut hash = BlobHash::Sha256(Box::default());
    hash.update(CONTENT);
    let etag = hash.finish();
    let folder = tempfile::tempdir().expect("a folder");
    Scene {
        blob: folder.path().join(&etag),
        listed: ListedFile {
            file: "model.safetensors".into(),
            size: CONTENT.len() as u64,
            etag,
        },
        folder,
    }
}

impl Scene {
    fn open(&self) -> Part {
        Part::open(&self.blob, &self.listed).expect("opened")
    }

    fn names(&self) -> Vec<String> {
        names_in(self.folder.path()).expect("listed")
    }

    fn assert_whole(&self) {
        assert_eq!(fs::read(&self.blob).expect("there"), CONTENT);
        assert_eq!(self.names(), [self.listed.etag.as_str()]);
    }
}

/// Two programs load a file at once, as on a disk that grants a lock to everybody.
#[test]
fn who_loads_too_does_not_touch_the_blob() {
    let scene = scene();
    let mut first = scene.open();
    first.push(&CONTENT[..3]).expect("written");
    let mut second = scene.open();
    first.push(&CONTENT[3..]).expect("written");
    assert_eq!(first.damage(), None);
    first.complete(&scene.blob).expect("there");
    second.push(b"something else").expect("written");
    second.clear().expect("cleared");
    assert_eq!(fs::read(&scene.blob).expect("there"), CONTENT);
    second.push(CONTENT).expect("written");
    second.complete(&scene.blob).expect("there too");
    scene.assert_whole();
}

#[test]
fn what_has_come_is_left_to_the_next() {
    let scene = scene();
    drop(scene.open());
    assert!(scene.names().is_empty());
    for end in [4, 9] {
        let mut part = scene.open();
        let begin = part.length() as usize;
        part.push(&CONTENT[begin..end]).expect("written");
        drop(part);
        let left = fs::read(left(&scene.blob)).expect("left");
        assert_eq!(left, &CONTENT[..end]);
        assert_eq!(scene.names().len(), 1);
    }
    let mut part = scene.open();
    part.push(&CONTENT[9..]).expect("written");
    part.complete(&scene.blob).expect("there");
    scene.assert_whole();
}

/// A program that was killed could put nothing back, and one that only seems dead may still
/// write.
#[test]
fn what_another_had_is_copied() {
    let scene = scene();
    let mut other = scene.open();
    other.push(&CONTENT[..5]).expect("written");
    let mut part = scene.open();
    assert_eq!(part.length(), 5);
    other.push(b"and more").expect("written");
    part.push(&CONTENT[5..]).expect("written");
    assert_eq!(part.damage(), None);
    part.complete(&scene.blob).expect("there");
    drop(other);
    scene.assert_whole();
}

#[test]
fn who_cleans_the_cache_stops_nobody() {
    let scene = scene();
    let mut part = scene.open();
    part.push(CONTENT).expect("written");
    for name in scene.names() {
        fs::remove_file(scene.folder.path().join(name)).expect("removed");
    }
    part.complete(&scene.blob).expect("there");
    scene.assert_whole();
}
