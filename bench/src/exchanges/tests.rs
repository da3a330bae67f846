use std::{io, path::Path};

use super::*;

#[test]
fn ranks_are_read_as_they_are_written() {
    let read = |text: &str| text.parse::<Ranks>().ok();
    let ranks = |tp_size, dp_size| Some(Ranks { tp_size, dp_size });
    assert_eq!(read("2"), ranks(2, 1));
    assert_eq!(read("4/2"), ranks(4, 2));
    for refused in ["", "1", "0", "4/0", "4/3", "2/4", "4/", "a/b", "-2"] {
        assert_eq!(read(refused), None, "{refused:?}");
    }
}

/// A model of three layers.
fn model() -> ModelConfig {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/architectures/llama");
    lockstep_model_folder::load(&path).expect("a model")
}

/// Writes no demo model: the tests name a model.
fn no_demo(_folder: &Path) -> io::Result<PathBuf> {
    Err(io::ErrorKind::NotFound.into())
}

fn args() -> Args {
    Args {
        model_path: Some(model().path),
        ranks: ["2", "2/2", "4/2"]
            .map(|ranks| ranks.parse().expect("ranks"))
            .to_vec(),
        requests: vec![5],
        drafts: 2,
        transport: vec![Transport::SharedMemory, Transport::Tcp],
        steps: 3,
    }
}

/// Every exchange runs on every rank, or ranks would wait for each other. The report has as
/// many exchanges as there are layers.
#[test]
fn steps_run_on_both_transports() {
    let report = run(&args(), no_demo).expect("it runs");
    let report = report.to_json();
    let rows = report["rows"].as_array().expect("rows");
    let layers = model().layers.len();
    for transport in ["shared memory", "tcp"] {
        for (ranks, dp_ranks, exchange, expected) in [
            (2, 1, "all-reduce", 1 + 2 * layers),
            (2, 1, "drafts", 1),
            (2, 1, "outcomes", 1),
            (2, 1, "all", 1 + 2 * layers + 3),
            (2, 2, "opening exchange", 1),
            (2, 2, "reduce-scatter", layers),
            // One more exchange, for the head.
            (2, 2, "all-gather", layers + 1),
            (2, 2, "gather of logits", 1),
            (2, 2, "all", 2 * layers + 3),
            (4, 2, "all-reduce", layers),
            (4, 2, "all", 3 * layers + 5),
        ] {
            let found = rows.iter().find(|row| {
                row["transport"] == transport
                    && row["ranks"] == ranks
                    && row["DP ranks"] == dp_ranks
                    && row["exchange"] == exchange
            });
            let found = found.expect("a row");
            assert_eq!(found["per step"], expected, "{found}");
            assert!(found["bytes per step"].as_u64() > Some(0), "{found}");
            let [p50, p99] = ["p50 us", "p99 us"].map(|name| found[name].as_f64());
            assert!(p50 > Some(0.0) && p99 >= p50, "{found}");
        }
    }
}

#[test]
fn ranks_without_work_are_refused() {
    let few = Args {
        requests: vec![1],
        ..args()
    };
    let refused = run(&few, no_demo);
    let error = refused.err().expect("refused").to_string();
    assert!(error.contains("--requests 1"), "{error}");
}
