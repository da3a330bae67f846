//! False claims of a hub, or of somebody on the way.

use lockstep_hub::{Cached, HubError, Kind, Token};
use lockstep_loopback_hub::{Fault, LoopbackHub, commit};

use crate::{NAME, SHARDS, Scene, files, wanted};

/// Text that no terminal should get: control sequences, ends of lines, and changes of
/// direction.
const HOSTILE: &str = "x\u{1b}[2J\r\n\0\u{9b}31m\u{202e}y";

fn assert_plain(text: &str) {
    let hostile = |c: &char| c.is_control() || "\u{200b}\u{2028}\u{202e}\u{2066}".contains(*c);
    assert_eq!(text.chars().find(hostile), None, "{text:?}");
    assert!(text.len() < 20_000, "{} bytes", text.len());
}

/// A hub's list of files, with one more entry.
fn listed(more: &str) -> Vec<u8> {
    let (commit, git) = (commit(NAME), "b".repeat(40));
    let text = format!(
        r#"{{"sha":"{commit}","siblings":[
            {{"rfilename":"config.json","size":3,"blobId":"{git}"}},
            {{"rfilename":"tokenizer.json","size":3,"blobId":"{git}"}},
            {{"rfilename":"model.safetensors","size":3,"blobId":"{git}"}},{more}]}}"#
    );
    text.into_bytes()
}

fn refused(list: Vec<u8>) -> HubError {
    let scene = Scene::new();
    scene.hub.fault(NAME, Fault::Instead(list));
    let error = scene.load().expect_err("a lie");
    assert_plain(&error.to_string());
    assert_plain(&scene.events());
    assert!(!scene.repository().exists(), "nothing was loaded");
    error
}

#[test]
fn lists_that_lie_are_refused_in_plain_words() {
    let git = "b".repeat(40);
    let hostile = serde_json_text(HOSTILE);
    let long = "x".repeat(1 << 20);
    for (more, expected) in [
        (
            format!(r#"{{"rfilename":{hostile}}}"#),
            "has no size or no hash",
        ),
        (
            format!(r#"{{"rfilename":{hostile},"size":1,"blobId":{hostile}}}"#),
            "the hash of x\\u{1b}[2J",
        ),
        (
            format!(r#"{{"rfilename":"config.json","size":1,"blobId":"{git}"}}"#),
            "config.json is in its list of files twice",
        ),
        (format!(r#"{{"rfilename":"{long}"}}"#), "xxx…"),
        (
            format!(r#"{{"rfilename":{hostile},"size":{hostile}}}"#),
            "can't be read",
        ),
        (
            format!(r#"{{"rfilename":"a","size":-1,"blobId":"{git}"}}"#),
            "can't be read",
        ),
        (
            format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)),
            "can't be read",
        ),
        (r#"{"rfilename":"a""#.to_owned(), "can't be read"),
    ] {
        let error = refused(listed(&more));
        let text = error.to_string();
        assert!(matches!(error, HubError::Answer { .. }), "{text}");
        assert!(text.contains(expected), "{expected}: {text}");
    }
    for list in [
        format!(r#"{{"sha":{hostile},"siblings":[]}}"#),
        format!(r#"{{"sha":"{long}","siblings":[]}}"#),
        // The beginning of a compressed body that was not asked for.
        "\u{1f}\u{8b}".to_owned(),
        String::new(),
    ] {
        let error = refused(list.into_bytes());
        assert!(matches!(error, HubError::Answer { .. }), "{error}");
    }
}

/// A text in JSON.
fn serde_json_text(text: &str) -> String {
    let escaped = text.chars().map(|c| format!("\\u{:04x}", u32::from(c)));
    format!("\"{}\"", escaped.collect::<String>())
}

/// Names that no path should have do no harm: such files are not loaded, and are not in the
/// cache.
#[test]
fn names_of_files_lead_nowhere_and_are_shown_plainly() {
    let names = [
        "../outside.json",
        "/etc/passwd",
        "..\\outside",
        "a\0b",
        HOSTILE,
        "CONFIG.JSON",
        "Model-00001-of-00002.safetensors",
        "deep/er/config.json",
        &"d/".repeat(2000),
        &"n".repeat(300),
    ];
    let scene = Scene::new();
    let files = files();
    let mut all: Vec<_> = files
        .iter()
        .map(|(name, content)| (*name, content.as_slice()))
        .collect();
    all.extend(names.map(|name| (name, &b"{}"[..])));
    scene.hub.add(NAME, &all);
    let fetched = scene.load().expect("loaded");
    scene.assert_whole(&fetched);
    // For weights in other formats the message has the names.
    let hostile = format!("{HOSTILE}.gguf");
    scene.hub.add("owner/other", &[(hostile.as_str(), b"")]);
    let error = scene
        .load_as(&wanted("owner/other"), &|_| Ok(()))
        .expect_err("no safetensors");
    assert!(error.to_string().contains("\\u{1b}[2J"), "{error}");
    assert_plain(&error.to_string());
}

/// Texts of the model's own files, and headers of refusals.
#[test]
fn reasons_are_shown_plainly() {
    let scene = Scene::new();
    let error = scene
        .load_as(&wanted(NAME), &|_| Err(HOSTILE.to_owned()))
        .expect_err("refused");
    assert_plain(&error.to_string());
    scene.exchange(
        "config.json",
        format!("{{\"architectures\": [{}]}}", serde_json_text(HOSTILE)).as_bytes(),
    );
    let check = lockstep_hub::check;
    let error = scene.load_as(&wanted(NAME), &check).expect_err("refused");
    assert!(matches!(error, HubError::Unsupported { .. }), "{error}");
    assert_plain(&error.to_string());
    assert_plain(
        &check(&Cached::all(&scene.settings.cache).expect("listed")[0].snapshots[0].folder)
            .expect_err("refused"),
    );
    for header in ["x-error-message", "location", "retry-after"] {
        let long = "tab\there ".repeat(5_000);
        for status in [302, 400, 403, 429] {
            scene
                .hub
                .fault(NAME, Fault::Status(status, vec![(header, long.clone())]));
            scene.hub.fault(NAME, Fault::Status(404, vec![]));
            let error = scene.load().expect_err("refused");
            assert_plain(&error.to_string());
        }
    }
    assert_plain(&scene.events().replace('\n', " "));
}

/// Small files have limits before a byte of them comes, the same as when they are read.
#[test]
fn small_files_that_nobody_would_read_are_not_loaded() {
    for (file, most) in [
        ("config.json", lockstep_files::LARGEST_CONFIG),
        ("generation_config.json", lockstep_files::LARGEST_CONFIG),
        ("tokenizer_config.json", lockstep_files::LARGEST_CONFIG),
        ("chat_template.jinja", lockstep_files::LARGEST_CONFIG),
        ("chat_template.json", lockstep_files::LARGEST_CONFIG),
        (
            "model.safetensors.index.json",
            lockstep_files::LARGEST_INDEX,
        ),
        ("tokenizer.json", lockstep_files::LARGEST_TOKENIZER),
    ] {
        let scene = Scene::new();
        scene.hub.claim_size(file, most + 1);
        let error = scene.load().expect_err("too large");
        let text = error.to_string();
        assert!(matches!(error, HubError::TooLarge { .. }), "{text}");
        assert!(
            text.contains(file) && text.contains(&most.to_string()),
            "{text}"
        );
        assert_eq!(scene.hub.seen().len(), 1, "the list alone was asked for");
        // With one byte less the file is only shorter than was claimed.
        scene.hub.claim_size(file, most);
        let error = scene.load().expect_err("a lie");
        assert!(matches!(error, HubError::Unreachable { .. }), "{error}");
        assert!(
            error.to_string().contains(&format!("instead of {most}")),
            "{error}"
        );
    }
}

/// A user who has the model gets only a note of it.
#[test]
fn a_size_that_can_not_be_stops_nobody_who_has_the_model() {
    let scene = Scene::new();
    let loaded = scene.load().expect("loaded");
    scene.hub.claim_size("config.json", u64::MAX);
    assert_eq!(scene.load().expect("there").folder, loaded.folder);
    assert!(
        scene.events().contains("18446744073709551615 bytes"),
        "{}",
        scene.events()
    );
}

/// More bytes than were claimed, without a header that says their number.
#[test]
fn what_is_longer_than_its_size_is_cut_off() {
    for file in ["config.json", SHARDS[0]] {
        let scene = Scene::new();
        for _ in 0..3 {
            scene.hub.fault(file, Fault::Longer);
        }
        let error = scene.load().expect_err("longer");
        assert!(
            error.to_string().contains("it has more than its"),
            "{error}"
        );
    }
}

#[test]
fn sums_of_sizes_have_no_end() {
    let scene = Scene::new();
    for shard in SHARDS {
        scene.hub.claim_size(shard, u64::MAX);
    }
    let error = scene.load().expect_err("no disk has that");
    assert!(matches!(error, HubError::Space { .. }), "{error}");
}

#[test]
fn ranges_that_lie_are_not_believed() {
    let of = |range: &str| vec![("content-range", range.to_owned())];
    for says in [
        of("bytes 0-299999/300000"),
        of("bytes 100001-299999/300000"),
        of("bytes 100000-299999/400000"),
        of("bytes 100000-399999/300000"),
        of("bytes 100000-299999/*"),
        of("bytes 18446744073709551615-18446744073709551615/18446744073709551615"),
        of("nothing of the kind"),
        of(&"9".repeat(5000)),
    ] {
        let scene = Scene::new();
        scene.hub.fault(SHARDS[0], Fault::DropAfter(100_000));
        scene.hub.fault(SHARDS[0], Fault::Says(says.clone()));
        let fetched = scene.load().expect("loaded");
        scene.assert_whole(&fetched);
        // The bytes that were there are kept, and no byte of the lie.
        assert_eq!(
            scene.hub.begins(SHARDS[0]),
            [0, 100_000, 100_000],
            "{says:?}"
        );
        assert_plain(&scene.events().replace('\n', " "));
    }
}

#[test]
fn the_same_bytes_again_are_found_by_their_hash() {
    let scene = Scene::new();
    scene.hub.fault(SHARDS[0], Fault::DropAfter(100_000));
    scene.hub.fault(SHARDS[0], Fault::Again);
    let fetched = scene.load().expect("loaded");
    scene.assert_whole(&fetched);
    assert_eq!(scene.hub.begins(SHARDS[0]), [0, 100_000, 0]);
}

/// Pauses of a year, of a negative time, or of no number.
#[test]
fn pauses_that_can_not_be_meant_are_not_waited_for() {
    for (status, after, tries) in [
        (429, "31536000", 1),
        (503, "31536000", 1),
        (429, "18446744073709551615", 1),
        (429, "-5", 3),
        (429, "99999999999999999999999", 3),
        (429, "Thu, 31 Dec 2099 23:59:59 GMT", 3),
        (503, "-5", 3),
    ] {
        let scene = Scene::new();
        for _ in 0..10 {
            let headers = vec![("retry-after", after.to_owned())];
            scene.hub.fault(NAME, Fault::Status(status, headers));
        }
        let error = scene.load().expect_err("refused");
        assert_eq!(scene.hub.seen().len(), tries, "{after}: {error}");
        let text = error.to_string();
        assert!(text.contains("tart again"), "{text}");
    }
}

/// Redirects away and back: the token stays with the hub.
#[test]
fn no_redirect_takes_the_token_along() {
    let away = LoopbackHub::start();
    let mut scene = Scene::new();
    scene.settings.token = Some(Token::new("hf_secret", "the test").expect("a token"));
    let list = format!("/api/models/{NAME}/revision/main");
    let there = format!("{}{list}", away.endpoint());
    let back = format!("{}{list}", scene.hub.endpoint());
    scene.hub.fault(NAME, Fault::Redirect(there.clone()));
    away.fault(NAME, Fault::Redirect(back));
    scene.load().expect("loaded");
    let tokens = |hub: &LoopbackHub| -> Vec<_> {
        let seen = hub.seen().into_iter().filter(|seen| seen.what == NAME);
        seen.map(|seen| seen.token).collect()
    };
    let shown = || Some("hf_secret".to_owned());
    assert_eq!(tokens(&away), [None]);
    assert_eq!(tokens(&scene.hub), [shown(), shown()]);
    // Addresses that only look like the hub's, or have a user name in them, don't get it
    // either.
    let port = scene
        .hub
        .endpoint()
        .rsplit(':')
        .next()
        .expect("a port")
        .to_owned();
    for (target, seen) in [
        (
            format!("http://localhost:{port}{list}"),
            vec![shown(), None],
        ),
        (
            format!("http://hf_secret@{}", there.trim_start_matches("http://")),
            vec![shown()],
        ),
    ] {
        let before = tokens(&scene.hub).len();
        scene.hub.fault(NAME, Fault::Redirect(target.clone()));
        let _ = scene.load();
        assert_eq!(tokens(&scene.hub)[before..], seen, "{target}");
    }
    assert!(away.seen().iter().all(|seen| seen.token.is_none()));
}

/// Redirects in circles, to other schemes, or nowhere.
#[test]
fn redirects_lead_somewhere_or_are_refused() {
    for target in [
        "ftp://a/b",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "http://",
        "//",
        "relative",
        "?query",
        "",
        "/\u{ff}",
    ] {
        let scene = Scene::new();
        scene.hub.fault(
            NAME,
            Fault::Status(307, vec![("location", target.to_owned())]),
        );
        let error = scene.load().expect_err("nowhere");
        assert!(
            !error.is_usage() || matches!(error, HubError::Missing { .. }),
            "{target}: {error}"
        );
        assert_plain(&error.to_string());
        assert!(scene.hub.seen().len() <= 2, "{target}: {error}");
    }
    let scene = Scene::new();
    let circle = format!("{}/{NAME}/resolve/main/{}", scene.hub.endpoint(), SHARDS[0]);
    for _ in 0..100 {
        scene.hub.fault(SHARDS[0], Fault::Redirect(circle.clone()));
    }
    let text = scene.load().expect_err("a circle").to_string();
    assert!(text.contains("redirects without an end"), "{text}");
}

/// An index with more names than are read, or with names that some disks take for one.
#[test]
fn an_index_is_bounded_as_when_it_is_read() {
    let many: Vec<_> = (0..=lockstep_files::MOST_WEIGHT_FILES)
        .map(|at| format!("\"{at}\": \"{at}.safetensors\""))
        .collect();
    let long = format!("{}.safetensors", "n".repeat(250));
    for (map, expected) in [
        (many.join(","), "names 513 files, more than 512"),
        (
            "\"a\": \"A.safetensors\", \"b\": \"a.safetensors\"".to_owned(),
            "differ by case alone",
        ),
        (format!("\"a\": \"{long}\""), "is not a file of safetensors"),
        (
            format!("\"a\": {}", serde_json_text(HOSTILE)),
            "is not a file of safetensors",
        ),
    ] {
        let scene = Scene::new();
        let index = format!("{{\"weight_map\": {{{map}}}}}");
        scene.exchange("model.safetensors.index.json", index.as_bytes());
        let mut wanted = wanted(NAME);
        wanted.kind = Kind::Draft;
        let error = scene.load_as(&wanted, &|_| Ok(())).expect_err("refused");
        assert!(error.to_string().contains(expected), "{error}");
        assert_plain(&error.to_string());
        // The cache does not count as complete then.
        let all = Cached::all(&scene.settings.cache).expect("listed");
        assert_eq!(all[0].snapshots[0].lacks, ["model.safetensors.index.json"]);
    }
}
