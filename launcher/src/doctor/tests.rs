use lockstep_config::Hardware;
use lockstep_devices::Finding;
use lockstep_process::exit;

use super::facts::Facts;
use super::requirements::Requirements;
use super::{DoctorArgs, as_json, findings, report};
use crate::settings::tests::algorithms;

/// A machine without problems.
fn well() -> Facts {
    Facts {
        asked: Requirements {
            threads: Some(4),
            shared_bytes: 8 << 20,
            connections: Some(4096),
            ..Requirements::default()
        },
        hardware: Hardware {
            cores: (0..8).collect(),
            total_memory: 64 << 30,
            available_memory: 60 << 30,
            memory_limit: None,
        },
        online: 8,
        quota: None,
        huge_pages: Some("madvise".to_owned()),
        shared_memory: Ok(1 << 30),
        open_files: (Some(1024), Some(524_288)),
        locked_memory: None,
        address_space: None,
        clock_source: Some("tsc".to_owned()),
        clock_in_step: Some(true),
        ports: vec![("8000 is free (--port)".to_owned(), None)],
        run_dir: Ok("/run/user/1".to_owned()),
    }
}

fn problems(facts: &Facts) -> Vec<(&'static str, String)> {
    let findings = findings::of(facts).into_iter();
    findings
        .filter_map(|finding| Some((finding.name, finding.problem?)))
        .collect()
}

#[test]
fn a_machine_that_is_well_has_no_problem() {
    assert_eq!(problems(&well()), []);
}

#[test]
fn each_fault_is_found_with_its_remedy() {
    type Harm = fn(&mut Facts);
    let harms: &[(&str, &str, Harm)] = &[
        ("Cores", "give the container", |facts| {
            facts.hardware.cores.truncate(1);
        }),
        ("Cores", "whole number", |facts| facts.quota = Some(7.5)),
        ("Threads", "--threads-per-rank", |facts| {
            facts.asked.threads = Some(9);
        }),
        ("Memory", "free some", |facts| {
            facts.hardware.available_memory = 1 << 29;
        }),
        ("Huge pages", "echo madvise", |facts| {
            facts.huge_pages = Some("never".to_owned());
        }),
        ("Shared memory", "64.0 MiB", |facts| {
            facts.shared_memory = Ok(1 << 20);
        }),
        ("Shared memory", "3.0 GiB", |facts| {
            facts.asked.shared_bytes = 3 << 30;
        }),
        ("Shared memory", "mount a tmpfs", |facts| {
            facts.shared_memory = Err("No such file".to_owned());
        }),
        ("Open files", "ulimit -Hn", |facts| {
            facts.open_files.1 = Some(1024);
        }),
        ("Open files", "take 600000", |facts| {
            facts.asked.connections = Some(600_000);
        }),
        ("Locked memory", "LimitMEMLOCK", |facts| {
            facts.asked.gpus = true;
            facts.locked_memory = Some(8 << 20);
        }),
        ("Address space", "ulimit -v", |facts| {
            facts.address_space = Some(1 << 40);
        }),
        ("Clock", "chrony", |facts| {
            facts.asked.nodes = Some(("10.0.0.1".to_owned(), 7000));
            facts.clock_in_step = Some(false);
        }),
        ("Clock", "clocksource=tsc", |facts| {
            facts.clock_source = Some("hpet".to_owned());
        }),
        ("Port", "another --port", |facts| {
            facts.ports[0].1 = Some("Give another --port".to_owned());
        }),
        ("Run directory", "denied", |facts| {
            facts.run_dir = Err("denied".to_owned());
        }),
        ("Options", "no model", |facts| {
            facts.asked.refused = Some("no model".to_owned());
        }),
    ];
    for (name, remedy, harm) in harms {
        let mut facts = well();
        harm(&mut facts);
        // A machine with one core has too many threads too.
        let found = problems(&facts);
        let is = |(of, said): &(&str, String)| of == name && said.contains(remedy);
        assert!(found.iter().any(is), "{name}, {remedy}: {found:?}");
        let others = found
            .iter()
            .filter(|found| !is(found) && found.0 != "Threads");
        assert_eq!(others.count(), 0, "{found:?}");
    }
    // Without GPUs no driver locks memory.
    let mut facts = well();
    facts.locked_memory = Some(8 << 20);
    assert_eq!(problems(&facts), []);
    // The clock of one machine alone may be anything.
    facts.clock_in_step = Some(false);
    assert_eq!(problems(&facts), []);
}

#[test]
fn problems_are_marked_with_their_remedy() {
    let well = Finding::new("Cores", "8").problem_if(false, "buy some");
    let ill = Finding::new("Memory", "1 byte").problem_if(true, "free some");
    let findings = [well, ill];
    let text = report(&findings);
    assert!(text.contains("  Cores          8\n"), "{text}");
    assert!(text.contains("! Memory         1 byte\n"), "{text}");
    assert!(
        text.contains("→ free some") && !text.contains("buy some"),
        "{text}"
    );
    assert!(text.ends_with("One problem, marked with !."), "{text}");
    assert!(report(&[]).ends_with("No problems."));
    let json = as_json(&findings);
    assert_eq!(
        (&json["problems"], &json["findings"][1]["problem"]),
        (&1.into(), &"free some".into())
    );
}

#[test]
fn this_machine_can_be_looked_at() {
    for json in [false, true] {
        let args = DoctorArgs {
            json,
            ..DoctorArgs::default()
        };
        let looked = super::run(&args, &algorithms());
        let code = looked.map_err(|error| error.to_string());
        assert!(matches!(code, Ok(exit::OK | exit::PROBLEMS)), "{code:?}");
    }
    // These options make no server on any machine.
    let mut args = DoctorArgs::default();
    args.serve.parallel.tp_size = Some(3);
    let looked = super::run(&args, &algorithms());
    assert_eq!(
        looked.map_err(|error| error.to_string()),
        Ok(exit::PROBLEMS)
    );
}

#[test]
fn a_port_that_is_taken_is_found() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let mut args = DoctorArgs::default().serve;
    args.server.port = Some(port);
    // A model that is given by name is not loaded.
    args.model.model_path = Some("some/model".into());
    let facts = Facts::collect(&args, &algorithms());
    let found = problems(&facts);
    let is = |name: &str, text: &str| {
        found
            .iter()
            .any(|(of, said)| *of == name && said.contains(text))
    };
    assert!(
        is("Port", "give --port ") && is("Options", "some/model"),
        "{found:?}"
    );
}
