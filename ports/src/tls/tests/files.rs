//! Reading of the files, and the errors about them.

use super::*;

#[test]
fn what_is_wrong_with_a_file_is_said_of_it() {
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new());
    let good = files(&folder, &authority);
    let [other_certificate, other_key] = authority.sign();
    let text = folder.path().join("text");
    fs::write(&text, "hello").expect("written");
    let other = folder.path().join("other.key");
    fs::write(&other, other_key).expect("written");
    let key_alone = folder.path().join("swapped.pem");
    fs::write(&key_alone, other_certificate).expect("written");
    let nowhere = folder.path().join("nowhere");
    let (cut_off, no_certificate) = (folder.path().join("cut"), folder.path().join("none"));
    let large = folder.path().join("large");
    let padded = |path| [fs::read(path).expect("read"), vec![b'\n'; 1 << 20]].concat();
    fs::write(&large, padded(&good.certificate)).expect("written");
    let begin = "-----BEGIN CERTIFICATE-----\nAAAA\n";
    fs::write(&cut_off, begin).expect("written");
    let whole = format!("{begin}-----END CERTIFICATE-----\n");
    fs::write(&no_certificate, whole).expect("written");
    let with = |change: &dyn Fn(&mut TlsFiles)| {
        let mut files = good.clone();
        change(&mut files);
        Tls::load(&files).expect_err("refused")
    };
    for (error, path, says) in [
        (
            with(&|files| files.certificate.clone_from(&nowhere)),
            &nowhere,
            "No such file",
        ),
        (
            with(&|files| files.certificate.clone_from(&text)),
            &text,
            "no certificate",
        ),
        (
            with(&|files| files.key.clone_from(&text)),
            &text,
            "no private key",
        ),
        (
            with(&|files| files.key.clone_from(&key_alone)),
            &key_alone,
            "no private key",
        ),
        (
            with(&|files| files.key.clone_from(&other)),
            &good.certificate,
            "other.key is another certificate's; give the two",
        ),
        (
            with(&|files| files.certificate.clone_from(&cut_off)),
            &cut_off,
            "copy the file anew",
        ),
        (
            with(&|files| files.certificate.clone_from(&no_certificate)),
            &no_certificate,
            "make one of version 3",
        ),
        (
            with(&|files| files.certificate.clone_from(&large)),
            &large,
            "more than 1 MiB",
        ),
        (
            with(&|files| files.client_roots = Some(text.clone())),
            &text,
            "no certificate",
        ),
    ] {
        assert_eq!(&error.path, path);
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// A file system that hangs must not keep connections waiting.
#[test]
fn nobody_waits_for_a_look_at_the_files() {
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new());
    let files = files(&folder, &authority);
    let tls = Tls::load(&files).expect("read");
    write(&files, &authority.sign());
    let changed = tls.take_in(|files| {
        assert!(tls.state.try_lock().is_ok(), "whoever greets would wait");
        Contents::read(files)
    });
    assert!(changed.expect("read"));
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for() {
    let (folder, authority) = (tempfile::tempdir().expect("a folder"), Authority::new());
    let files = files(&folder, &authority);
    let tls = Tls::load(&files).expect("read");
    fs::remove_file(&files.key).expect("removed");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &files.key, mode).expect("a pipe");
    let error = tls.look().expect_err("no file").to_string();
    assert!(error.contains("no regular file"), "{error}");
}
