use super::*;

fn resolved(
    config: &TraceConfig,
    environment: &[(&'static str, &str)],
) -> Result<Destination, String> {
    let variables = |name: &'static str| {
        let found = environment.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    Destination::resolved(config, &variables).map_err(|error| error.to_string())
}

#[test]
fn options_come_before_the_environment_and_that_before_what_is_usual() {
    let config = |endpoint: Option<&str>, sample_ppm| TraceConfig {
        endpoint: endpoint.map(str::to_owned),
        sample_ppm,
    };
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "grpc://all:1"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "traces:2"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.5"),
    ];
    for (config, environment, expected) in [
        (config(None, None), &[][..], ("http://localhost:4317", 1.0)),
        (config(None, None), &environment[..1], ("http://all:1", 1.0)),
        (
            config(None, None),
            &environment[..],
            ("http://traces:2", 0.5),
        ),
        (
            config(Some("https://option:3"), Some(250_000)),
            &environment[..],
            ("https://option:3", 0.25),
        ),
    ] {
        let found = resolved(&config, environment).expect("good");
        assert_eq!((found.endpoint.as_str(), found.share), expected);
    }
}

#[test]
fn what_cannot_be_done_is_refused_with_its_variable() {
    for (name, value, part) in [
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL",
            "http/protobuf",
            "set it to grpc",
        ),
        (
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "http/json",
            "set it to grpc",
        ),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://x", "http://host:port"),
        ("OTEL_TRACES_SAMPLER", "always_on", "parentbased_always_on"),
    ] {
        let error = resolved(&TraceConfig::default(), &[(name, value)]).expect_err(name);
        let begin = format!("{name}={value} ");
        assert!(error.starts_with(&begin) && error.contains(part), "{error}");
    }
    let encrypted = TraceConfig {
        endpoint: Some("https://c:4317".to_owned()),
        sample_ppm: None,
    };
    let missing = [("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/roots.pem")];
    let error = resolved(&encrypted, &missing).expect_err("no such file");
    assert!(
        error.contains("CERTIFICATE=/nowhere/roots.pem: "),
        "{error}"
    );
    assert!(
        resolved(&TraceConfig::default(), &missing).is_ok(),
        "not encrypted"
    );
}

#[test]
fn people_see_the_address_without_its_secret() {
    for (endpoint, shown, is_for_http) in [
        ("http://c:4317", "http://c:4317", false),
        ("http://c:4318", "http://c:4318", true),
        ("http://c:4318/v1/traces", "http://c:4318/v1/traces", true),
        ("https://u:p@ss@[::1]:4317", "https://[::1]:4317", false),
        ("http://c/a@b:4318", "http://c/a@b:4318", false),
    ] {
        let config = TraceConfig {
            endpoint: Some(endpoint.to_owned()),
            sample_ppm: None,
        };
        let found = resolved(&config, &[]).expect("good");
        assert_eq!(
            (found.shown().as_str(), found.is_for_http()),
            (shown, is_for_http)
        );
    }
}
