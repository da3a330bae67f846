//! Everything that can't be had gets an error of its own, before weights are loaded.

use std::path::Path;

use lockstep_hub::{HubError, Kind, Revision, Token};
use lockstep_loopback_hub::Fault;

use crate::{NAME, SHARDS, Scene, files, wanted};

fn token(text: &str) -> Option<Token> {
    Some(Token::new(text, "the test").expect("a token"))
}

#[test]
fn a_gate_is_told_with_where_it_opens() {
    let mut scene = Scene::new();
    scene.hub.gate("hf_right");
    let error = scene.load().expect_err("gated");
    let text = error.to_string();
    assert!(matches!(error, HubError::Gated { .. }), "{text}");
    assert!(
        text.contains(&format!("{}/{NAME}", scene.hub.endpoint())),
        "{text}"
    );
    assert!(text.contains("HF_TOKEN"), "{text}");
    // One request was enough: no other file was asked for.
    let files: Vec<_> = scene.hub.seen().into_iter().map(|seen| seen.what).collect();
    assert_eq!(files, [NAME, "config.json"]);

    scene.settings.token = token("hf_wrong");
    let text = scene.load().expect_err("gated").to_string();
    assert!(
        text.contains("the account of your token") && !text.contains("hf_wrong"),
        "{text}"
    );
    scene.settings.token = token("hf_right");
    let fetched = scene.load().expect("loaded");
    scene.assert_whole(&fetched);
}

#[test]
fn the_token_is_shown_to_the_hub_alone() {
    let mut scene = Scene::new();
    scene.settings.token = token("hf_secret");
    scene.load().expect("loaded");
    let seen = scene.hub.seen();
    assert!(seen.iter().any(|seen| seen.elsewhere));
    for request in seen {
        assert_eq!(request.token.is_some(), !request.elsewhere, "{request:?}");
    }
}

#[test]
fn refusals_are_told_apart() {
    let code = |code: &str| vec![("x-error-code", code.to_owned())];
    for (status, headers, with_token, expected) in [
        (401, code("RepoNotFound"), false, "no model at"),
        (404, code("RepoNotFound"), true, "no model at"),
        (401, code("GatedRepo"), false, "is gated"),
        (403, code("GatedRepo"), true, "is gated"),
        (403, code("GatedRepo"), false, "is gated"),
        (403, vec![], true, "forbids"),
        (
            403,
            vec![("x-error-message", "Too many of you.".into())],
            false,
            "(403): Too many of you. Give a token",
        ),
        (
            403,
            vec![("x-error-message", "This repository is gated".into())],
            false,
            "is gated",
        ),
        (401, vec![], false, "if it is private"),
        (401, vec![], true, "refuses the token"),
        (404, code("RevisionNotFound"), false, "has no revision main"),
        (404, vec![], false, "no model at"),
        (451, vec![], false, "answers 451"),
        (
            429,
            vec![("retry-after", "3600".into())],
            false,
            "come back in 3600 s",
        ),
        (
            302,
            vec![("location", "ftp://a/b".into())],
            false,
            "leads nowhere",
        ),
    ] {
        let mut scene = Scene::new();
        if with_token {
            scene.settings.token = token("hf_own");
        }
        scene.hub.fault(NAME, Fault::Status(status, headers));
        let error = scene.load().expect_err("refused");
        let text = error.to_string();
        assert!(text.contains(expected), "{status}: {text}");
        assert_eq!(scene.hub.seen().len(), 1, "{text}");
    }
}

#[test]
fn a_limit_is_waited_for_and_then_told() {
    let scene = Scene::new();
    for _ in 0..3 {
        scene
            .hub
            .fault(NAME, Fault::Status(429, vec![("retry-after", "0".into())]));
    }
    let error = scene.load().expect_err("limited");
    assert!(matches!(error, HubError::RateLimited { .. }), "{error}");
    assert_eq!(scene.hub.seen().len(), 3);
}

#[test]
fn redirects_end() {
    let scene = Scene::new();
    for _ in 0..20 {
        scene.hub.fault(
            NAME,
            Fault::Redirect(format!("/api/models/{NAME}/revision/main")),
        );
    }
    let text = scene.load().expect_err("a circle").to_string();
    assert!(text.contains("redirects without an end"), "{text}");
}

#[test]
fn unknown_models_and_revisions_are_two_things() {
    let scene = Scene::new();
    let error = scene
        .load_as(&wanted("owner/nothing"), &|_| Ok(()))
        .expect_err("missing");
    assert!(matches!(error, HubError::Missing { .. }), "{error}");
    let mut wanted = wanted(NAME);
    wanted.revision = Revision::parse("refs/pr/7").expect("a revision");
    let error = scene.load_as(&wanted, &|_| Ok(())).expect_err("missing");
    assert!(matches!(error, HubError::MissingRevision { .. }), "{error}");
    assert!(error.is_usage());
}

#[test]
fn what_is_not_served_costs_no_weights() {
    let scene = Scene::new();
    let check = |folder: &Path| {
        assert!(folder.join("config.json").is_file());
        Err("an architecture of another world".to_owned())
    };
    let error = scene
        .load_as(&wanted(NAME), &check)
        .expect_err("unsupported");
    assert!(matches!(error, HubError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("another world"), "{error}");
    let weights = scene
        .hub
        .seen()
        .into_iter()
        .filter(|seen| seen.what.ends_with("safetensors"));
    assert_eq!(weights.count(), 0);
}

#[test]
fn repositories_without_what_is_served_are_named() {
    for (left_out, kind, expected) in [
        (&SHARDS[..], Kind::Target, Some("names model-00001")),
        (
            &["model.safetensors.index.json", SHARDS[0], SHARDS[1]],
            Kind::Target,
            Some("holds no model.safetensors, but model-q4.gguf and 1 like it"),
        ),
        (
            &["model.safetensors.index.json", SHARDS[0], SHARDS[1]],
            Kind::Target,
            Some("give the file's path"),
        ),
        (
            &["tokenizer.json"],
            Kind::Target,
            Some("has no tokenizer.json"),
        ),
        (&["tokenizer.json"], Kind::Draft, None),
        (&["config.json"], Kind::Draft, Some("has no config.json")),
    ] {
        let scene = Scene::new();
        let files = files();
        let files = files.iter().filter(|(name, _)| !left_out.contains(name));
        let files: Vec<_> = files
            .map(|(name, content)| (*name, content.as_slice()))
            .collect();
        scene.hub.add(NAME, &files);
        let mut wanted = wanted(NAME);
        wanted.kind = kind;
        let found = scene
            .load_as(&wanted, &|_| Ok(()))
            .map_err(|error| error.to_string());
        match (found, expected) {
            (Ok(_), None) => {}
            (Err(text), Some(expected)) => assert!(text.contains(expected), "{text}"),
            (found, _) => panic!("{left_out:?}: {found:?}"),
        }
    }
}

#[test]
fn an_index_leads_nowhere_else() {
    for name in [
        "../config.json",
        "/etc/passwd",
        "a/b.safetensors",
        ".x.safetensors",
        "a.bin",
    ] {
        let scene = Scene::new();
        let index = format!(r#"{{"weight_map": {{"a": "{name}"}}}}"#);
        let files = files();
        let files = files.iter().map(|(file, content)| match *file {
            "model.safetensors.index.json" => (*file, index.as_bytes()),
            _ => (*file, content.as_slice()),
        });
        scene.hub.add(NAME, &files.collect::<Vec<_>>());
        let text = scene.load().expect_err("refused").to_string();
        assert!(text.contains("is not a file of safetensors"), "{text}");
    }
}
