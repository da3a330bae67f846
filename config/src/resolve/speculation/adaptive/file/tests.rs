use super::{AdaptiveFile, OF_A_SLOT, PROFILE, Tuning};

fn parse(text: &str) -> AdaptiveFile {
    AdaptiveFile::parse(text).expect(text)
}

#[test]
fn the_first_form_has_everything_outside() {
    let file = parse(
        r#"{"candidate_steps": [7, 1, 3, 1], "ema_alpha": 0.2, "update_interval": 5,
            "warmup_batches": 10, "down_hysteresis": -0.25, "up_hysteresis": 0.0}"#,
    );
    let all = Tuning {
        candidates: Some(vec![1, 3, 7]),
        ema_alpha: Some(200_000),
        update_interval: Some(5),
        warmup_batches: Some(10),
        down_hysteresis: Some(-250_000),
        up_hysteresis: Some(0),
        ceiling_coeff: None,
    };
    assert_eq!(file.all, all);
    assert!(file.slots.is_empty() && file.strategy.is_none());
    assert_eq!(file.keys.len(), 5, "all but candidates");
}

#[test]
fn batch_sizes_are_kept_apart() {
    let file = parse(
        r#"{"strategy": "ema", "ema_alpha": 1,
            "64": {"candidate_steps": [1, 3], "ceiling_coeff": 1.67},
            "1": {"candidate_steps": [1, 3, 7], "ema_alpha": 0.5},
            "0128": {"candidate_steps": [0], "ceiling_coeff": -3}}"#,
    );
    assert_eq!(file.strategy.as_deref(), Some("ema"));
    assert_eq!(file.all.ema_alpha, Some(1_000_000));
    let slots: Vec<_> = file.slots.iter().collect();
    let [(1, one), (64, many), (128, most)] = slots.as_slice() else {
        panic!("{slots:?}");
    };
    assert_eq!(
        (one.ema_alpha, many.ema_alpha, many.ceiling_coeff),
        (Some(500_000), None, Some(1_670_000))
    );
    // Below 0 there is no ceiling.
    assert_eq!(
        (most.candidates.as_deref(), most.ceiling_coeff),
        (Some(&[0][..]), Some(0))
    );
    assert_eq!(file.keys, ["ema_alpha", "ceiling_coeff"]);
}

#[test]
fn the_defaults_of_sglangs_measurements_pass() {
    let file = parse(
        r#"{"strategy": "throughput_aware", "window_size": 20, "update_interval": 5,
            "profile_run_batch_sizes": null, "max_profile_run_batch_size": null,
            "profile_run_n_warmup": 5, "profile_run_n_measure": 10,
            "profile_run_seq_len": 128, "switch_hysteresis": 0.1,
            "1": {"candidate_steps": [1, 3, 5, 7]}, "128": {"candidate_steps": [1]}}"#,
    );
    assert_eq!(
        (file.window_size, file.switch_hysteresis),
        (Some(20), Some(100_000))
    );
    for (key, _) in PROFILE {
        let error = AdaptiveFile::parse(&format!(r#"{{"{key}": 77}}"#)).expect_err(key);
        assert!(error.contains("77") && error.contains(key), "{error}");
    }
}

#[test]
fn every_key_that_is_said_to_be_known_is() {
    for key in OF_A_SLOT
        .into_iter()
        .filter(|key| *key != super::CANDIDATES)
    {
        parse(&format!(r#"{{"{key}": 1}}"#));
        parse(&format!(
            r#"{{"8": {{"candidate_steps": [1], "{key}": 1}}}}"#
        ));
    }
}

#[test]
fn what_is_wrong_is_named_with_a_remedy() {
    // (file, texts in the error)
    for (text, names) in [
        ("", &["JSON", "line 1"][..]),
        ("{\n\"1\": {\n]}", &["line 3", "Correct"]),
        ("[1]", &["object", "braces"]),
        (r#"{"strategy": 3}"#, &["strategy", "3", "name"]),
        (
            r#"{"candidate": [1]}"#,
            &["candidate", "candidate_steps", "strategy"],
        ),
        (
            r#"{"8": {"window_size": 1}}"#,
            &["\"8\"", "window_size", "ema_alpha"],
        ),
        (
            r#"{"8": {"1-767": [0]}}"#,
            &["\"8\"", "1-767", "candidate_steps"],
        ),
        (r#"{"8": [1, 3]}"#, &["\"8\"", "candidate_steps"]),
        (
            r#"{"8": {"ema_alpha": 0.1}}"#,
            &["\"8\"", "candidate_steps"],
        ),
        (r#"{"+8": {"candidate_steps": [1]}}"#, &["+8"]),
        (r#"{"candidate_steps": []}"#, &["candidate_steps", "[]"]),
        (
            r#"{"candidate_steps": [1, -1]}"#,
            &["candidate_steps", "-1"],
        ),
        (
            r#"{"candidate_steps": [true]}"#,
            &["candidate_steps", "true"],
        ),
        (r#"{"candidate_steps": [1.5]}"#, &["candidate_steps", "1.5"]),
        (
            r#"{"ema_alpha": 1.000001}"#,
            &["ema_alpha", "1.000001", "0 to 1"],
        ),
        (r#"{"ema_alpha": -0.1}"#, &["ema_alpha", "-0.1", "0 to 1"]),
        (
            r#"{"ema_alpha": 0.1234567}"#,
            &["ema_alpha", "six decimals"],
        ),
        (
            r#"{"update_interval": 0}"#,
            &["update_interval", "at least 1"],
        ),
        (
            r#"{"warmup_batches": 2.5}"#,
            &["warmup_batches", "2.5", "at least 0"],
        ),
        (r#"{"window_size": 0}"#, &["window_size", "at least 1"]),
        (
            r#"{"switch_hysteresis": -0.1}"#,
            &["switch_hysteresis", "0 or more"],
        ),
        (r#"{"up_hysteresis": 9999}"#, &["up_hysteresis", "2147"]),
        (
            r#"{"candidate_steps": [1], "8": {"candidate_steps": [1]}}"#,
            &["candidate_steps", "\"8\""],
        ),
        (
            r#"{"0": {"candidate_steps": [1]}, "1": {"candidate_steps": [1]}}"#,
            &["\"1\"", "already"],
        ),
    ] {
        let error = AdaptiveFile::parse(text).expect_err(text);
        for name in names {
            assert!(error.contains(name), "{text}: {name:?} is not in: {error}");
        }
        assert!(error.ends_with('.') && error.contains(". "), "{error}");
    }
}
