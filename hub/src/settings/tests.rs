use std::collections::BTreeMap;

use super::*;

fn settings(variables: &[(&str, &str)]) -> Result<Settings, HubError> {
    let variables: BTreeMap<_, _> = variables.iter().copied().collect();
    Settings::from(&|name| variables.get(name).map(|value| (*value).to_owned()))
}

#[test]
fn the_cache_lies_where_all_programs_look() {
    for (variables, cache) in [
        (vec![("HOME", "/h")], "/h/.cache/huggingface/hub"),
        (
            vec![("HOME", "/h"), ("XDG_CACHE_HOME", "/x")],
            "/x/huggingface/hub",
        ),
        (vec![("HF_HOME", "/m"), ("XDG_CACHE_HOME", "/x")], "/m/hub"),
        (vec![("HOME", "/h"), ("HF_HOME", "~/m")], "/h/m/hub"),
        (vec![("HF_HOME", "/m"), ("HF_HUB_CACHE", "/c")], "/c"),
        (vec![("HUGGINGFACE_HUB_CACHE", "/old")], "/old"),
        (vec![("DATA", "/d"), ("HF_HOME", "$DATA/m")], "/d/m/hub"),
        (
            vec![
                ("DATA", "d"),
                ("HOME", "/h"),
                ("HF_HUB_CACHE", "~/${DATA}_$NONE/$"),
            ],
            "/h/d_$NONE/$",
        ),
    ] {
        let found = settings(&variables).expect("settings").cache;
        assert_eq!(found, Path::new(cache), "{variables:?}");
    }
}

#[test]
fn tokens_come_from_a_variable_or_the_file_and_are_never_shown() {
    let home = tempfile::tempdir().expect("a folder");
    let path = home.path().to_str().expect("a path");
    fs::write(home.path().join("token"), "hf_file\n").expect("written");
    for (variables, token) in [
        (vec![("HF_HOME", path)], Some("Bearer hf_file")),
        (
            vec![("HF_HOME", path), ("HF_TOKEN", " hf_own ")],
            Some("Bearer hf_own"),
        ),
        (
            vec![("HF_HOME", path), ("HF_TOKEN", " ")],
            Some("Bearer hf_file"),
        ),
        (
            vec![("HF_HOME", path), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")],
            None,
        ),
        (
            vec![
                ("HF_TOKEN", "hf_own"),
                ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"),
            ],
            None,
        ),
        (vec![("HF_HOME", "/nowhere")], None),
    ] {
        let found = settings(&variables).expect("settings").token;
        assert!(!format!("{found:?}").contains("hf_"));
        let found = found.as_ref().map(Token::header);
        assert_eq!(
            found.as_ref().map(HeaderValue::as_bytes),
            token.map(str::as_bytes)
        );
    }
    let error = settings(&[("HF_TOKEN", "hf_\nsecret")]).expect_err("no token");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[test]
fn offline_is_said_by_a_switch() {
    for (value, offline) in [("1", true), ("true", true), ("0", false), ("no", false)] {
        let found = settings(&[("HF_HUB_OFFLINE", value)]).expect("settings");
        assert_eq!(found.offline.is_some(), offline, "{value}");
    }
    // The hub's own variable decides, if it is set.
    let both = [("HF_HUB_OFFLINE", "0"), ("TRANSFORMERS_OFFLINE", "1")];
    assert_eq!(settings(&both).expect("settings").offline, None);
    let found = settings(&both[1..]).expect("settings").offline;
    assert_eq!(found, Some("TRANSFORMERS_OFFLINE"));
}

#[test]
fn a_time_is_a_number_of_seconds() {
    let found = settings(&[("HF_HUB_DOWNLOAD_TIMEOUT", "7")]).expect("settings");
    assert_eq!(found.limits.stall, Duration::from_secs(7));
    for bad in ["2m", "0", "-1", "1.5"] {
        let error = settings(&[("HF_HUB_DOWNLOAD_TIMEOUT", bad)]).expect_err("none");
        assert!(
            error.to_string().contains("HF_HUB_DOWNLOAD_TIMEOUT"),
            "{error}"
        );
    }
}

/// Waits that a user extends are extended, but no start waits longer than its limit.
#[test]
fn times_fit_together() {
    let usual = TransferLimits::default();
    let long = settings(&[("HF_HUB_DOWNLOAD_TIMEOUT", "3600")]).expect("settings");
    let hour = Duration::from_secs(3600);
    assert_eq!((long.limits.window, long.limits.described), (hour, hour));
    let short = settings(&[("HF_HUB_DOWNLOAD_TIMEOUT", "7")]).expect("settings");
    assert_eq!(short.limits.window, usual.window);
    let limit = Duration::from_secs(20);
    let start = long.within(limit).limits;
    for time in [start.longest_pause, start.described, start.lock] {
        assert_eq!(time, limit);
    }
    // Weights take longer, and may stand still for as long as is allowed.
    assert_eq!((start.stall, start.window), (hour, hour));
    assert_eq!(start.set_by, Some("--startup-timeout"));
    let start = short.within(hour).limits;
    assert_eq!((start.window, start.lock), (usual.window, usual.lock));
    assert_eq!(start.described, hour, "as long as the start");
}

/// Descriptions of a model in the cache are waited for only seconds. An error names the
/// option that makes them fewer.
#[test]
fn who_has_the_model_waits_briefly() {
    let usual = settings(&[]).expect("settings");
    for (startup, described, set_by) in [
        (600, 30, None),
        (30, 30, Some("--startup-timeout")),
        (9, 9, Some("--startup-timeout")),
    ] {
        let start = usual.clone().within(Duration::from_secs(startup));
        let brief = start.limits.brief();
        assert_eq!(brief.described, Duration::from_secs(described));
        assert_eq!(brief.set_by, set_by, "{startup}");
        assert!(brief.stall < usual.limits.stall && brief.attempts < usual.limits.attempts);
    }
}

#[test]
fn an_endpoint_is_an_address() {
    let good = settings(&[("HF_ENDPOINT", "http://127.0.0.1:8080/hub/")]).expect("settings");
    assert_eq!(good.endpoint, "http://127.0.0.1:8080/hub");
    for login in [
        "https://user:secret@a/b",
        "https://token@a",
        "user:secret@a",
    ] {
        let error = settings(&[("HF_ENDPOINT", login)]).expect_err("not sent");
        let text = error.to_string();
        assert!(
            text.contains("HF_TOKEN") && !text.contains("secret"),
            "{text}"
        );
    }
    assert!(settings(&[("HF_ENDPOINT", "https://a/b@c")]).is_ok());
    for bad in [
        "huggingface.co",
        "ftp://a",
        "https://",
        "https://a?b=c",
        "x y",
    ] {
        assert!(settings(&[("HF_ENDPOINT", bad)]).is_err(), "{bad}");
    }
}

/// Named authorities must exist, or others would be trusted.
#[test]
fn authorities_that_are_named_are_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path.to_str().expect("a path").to_owned()
    };
    let good = file("good.pem", "-----BEGIN CERTIFICATE-----\n");
    let other = file("other.pem", "nothing of the kind");
    let there = folder.path().to_str().expect("a path");
    assert!(settings(&[("SSL_CERT_FILE", &good), ("SSL_CERT_DIR", there)]).is_ok());
    for (name, value) in [
        ("SSL_CERT_FILE", other.as_str()),
        ("SSL_CERT_FILE", "/nowhere/roots.pem"),
        ("SSL_CERT_DIR", "/nowhere"),
    ] {
        let error = settings(&[(name, value)]).expect_err("not there");
        let text = error.to_string();
        assert!(text.starts_with(&format!("{name}={value}: ")), "{text}");
        let offline = [(name, value), ("HF_HUB_OFFLINE", "1")];
        assert!(settings(&offline).is_ok(), "nobody is asked");
    }
}

#[test]
fn a_proxy_is_an_address() {
    for good in ["http://p:1", "p.test:3128", "http://user:secret@p:1"] {
        assert!(settings(&[("HTTPS_PROXY", good)]).is_ok(), "{good}");
    }
    for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"] {
        let error = settings(&[(name, "http://user:secret@p q:x")]).expect_err("none");
        let text = error.to_string();
        assert!(text.contains(name) && !text.contains("secret"), "{text}");
    }
}
