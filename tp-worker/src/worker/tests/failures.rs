//! Ranks that fail, and a request whose logits are not finite.

use std::{
    fs,
    sync::{Arc, Barrier},
    thread,
    time::Duration,
};

use lockstep_backend_cpu::CpuError;
use lockstep_collective::{Options, local_group, local_group_with};
use lockstep_devices::DeviceError;
use lockstep_speculation::DrafterRegistry;
use lockstep_types::step::{PlanPart, SlotExtend, StepPlan};
use lockstep_types::{Dtype, SpeculationConfig};

use super::support::{Request, config, cpu, load, open, repository};
use crate::worker::{
    WorkerError,
    local::{GroupOptions, LocalGroup, LocalOptions},
};

/// The group's error is the failed rank's error, not that of its peer.
#[test]
fn a_rank_that_does_not_start_is_the_cause() {
    let config = config(2, 16, Dtype::Float32);
    let own = config.clone();
    let backend = move |rank, collective| match rank {
        0 => Ok(cpu(&own, collective)),
        _ => Err(DeviceError::new(CpuError::NoThreads).into()),
    };
    let drafters = DrafterRegistry::empty();
    let error = LocalGroup::start_on(&config, &GroupOptions::new(&drafters), backend)
        .err()
        .unwrap();
    assert!(
        matches!(error, WorkerError::Device(_))
            && error.to_string() == CpuError::NoThreads.to_string(),
        "{error}"
    );
}

/// A plan that can't be followed ends the group with its reason, whichever rank notices first.
/// The group stays ended.
#[test]
fn a_bad_plan_ends_the_group() {
    let config = config(2, 16, Dtype::Float32);
    let group = LocalGroup::start(&config, &LocalOptions::default()).unwrap();
    let bad = StepPlan {
        step: 1,
        parts: vec![PlanPart {
            closes: vec![3],
            ..PlanPart::default()
        }],
        ..StepPlan::default()
    };
    let error = group.step(bad).unwrap_err();
    assert!(
        matches!(error, WorkerError::Plan { step: 1, .. }),
        "{error}"
    );
    let after = group.step(StepPlan::default()).unwrap_err();
    assert!(matches!(after, WorkerError::Ended { rank: 0 }), "{after}");
}

/// Ranks with different configurations notice before they serve.
#[test]
fn ranks_that_prepared_other_passes_do_not_start() {
    let ranks: Vec<_> = local_group(2)
        .into_iter()
        .enumerate()
        .map(|(rank, collective)| {
            let mut config = config(2, 16, Dtype::Float32);
            config.schedule.max_running_requests += rank;
            thread::spawn(move || load(&config, rank, Box::new(collective)).err())
        })
        .collect();
    for (own, other) in ranks.into_iter().zip([1, 0]) {
        let error = own.join().unwrap().unwrap();
        let WorkerError::PassesDiffer {
            rank,
            ours,
            peer,
            theirs,
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!((rank, peer), (1 - other, other));
        assert_ne!(ours, theirs);
    }
}

/// Ranks whose depth does not adapt exchange no rows that name the step; the error does.
#[test]
fn a_late_rank_is_named_with_the_step() {
    const LATE: u64 = 3;
    let config = &config(2, 16, Dtype::Float32);
    let options = Options {
        timeout: Duration::from_secs(3),
        ..Options::default()
    };
    let plans = &plans(&[&[7, 8, 9]], 0);
    let found: Vec<_> = thread::scope(|scope| {
        let waits = Arc::new(Barrier::new(2));
        let rank = |(rank, collective): (usize, _)| {
            let waits = waits.clone();
            scope.spawn(move || {
                let mut worker = load(config, rank, Box::new(collective)).unwrap();
                let steps = match rank {
                    0 => LATE,
                    _ => LATE - 1,
                };
                let plans = &plans[..steps as usize];
                let end = plans.iter().find_map(|plan| worker.step(plan).err());
                // The late rank stays until the other has given up.
                waits.wait();
                end
            })
        };
        let ranks: Vec<_> = local_group_with(2, &options)
            .into_iter()
            .enumerate()
            .map(rank)
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    let [Some(error), None] = &found[..] else {
        panic!("{found:?}");
    };
    assert!(matches!(error, WorkerError::Late { step: LATE, .. }));
    let told = error.to_string();
    for part in ["step 3: ", "rank 0 waited", "for rank 1 in"] {
        assert!(told.contains(part), "{told}");
    }
    assert!(!error.is_divergence());
}

/// Copies a small model and makes the embedding of one token NaN.
fn poisoned(token: usize) -> tempfile::TempDir {
    let from = repository().join("tests/fixtures/architectures/llama");
    let folder = tempfile::tempdir().unwrap();
    fs::copy(from.join("config.json"), folder.path().join("config.json")).unwrap();
    let mut bytes = fs::read(from.join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let table = &json["model.embed_tokens.weight"];
    assert_eq!(table["dtype"], "BF16");
    let start = 8 + header + table["data_offsets"][0].as_u64().unwrap() as usize;
    let width = 2 * table["shape"][1].as_u64().unwrap() as usize;
    let row = &mut bytes[start + token * width..][..width];
    row.copy_from_slice(&[0xc0, 0x7f].repeat(width / 2));
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}

/// Returns plans for `prompts` side by side: one prefill, then three decode steps that draft
/// `draft_steps` deep.
fn plans(prompts: &[&[u32]], draft_steps: u32) -> Vec<StepPlan> {
    let rows = |prefill: bool| {
        let row = |slot: usize| SlotExtend {
            slot: slot as u32,
            prefill_len: if prefill {
                prompts[slot].len() as u32
            } else {
                0
            },
            sample: true,
            new_pages: if prefill {
                vec![slot as u32 + 1]
            } else {
                vec![]
            },
            ..SlotExtend::default()
        };
        (0..prompts.len()).map(row).collect()
    };
    let opens = prompts.iter().enumerate();
    let opens = opens.map(|(slot, prompt)| open(slot as u32, &Request::greedy(prompt, 9)));
    let first = StepPlan {
        step: 1,
        parts: vec![PlanPart {
            opens: opens.collect(),
            extends: rows(true),
            ..PlanPart::default()
        }],
        ..StepPlan::default()
    };
    let next = (2..5).map(|step| StepPlan {
        step,
        draft_steps,
        parts: vec![PlanPart {
            extends: rows(false),
            ..PlanPart::default()
        }],
        ..StepPlan::default()
    });
    std::iter::once(first).chain(next).collect()
}

/// Logits that are not finite end their own request alone. It brings no token any more, and its
/// neighbour goes on as if alone. If it is the only request left and would draft, ranks do not
/// wait for each other either.
#[test]
fn nan_harms_one_request_alone() {
    let folder = poisoned(77);
    let mut config = config(2, 16, Dtype::Float32);
    config.model = lockstep_model_folder::load(folder.path()).unwrap();
    let drafting = SpeculationConfig {
        algorithm: Some("NGRAM".to_owned()),
        num_steps: 2,
        num_draft_tokens: 3,
        max_speculative_num_draft_tokens: 3,
        ..SpeculationConfig::none()
    };
    for speculation in [SpeculationConfig::none(), drafting] {
        config.speculation = speculation;
        let run = |prompts: &[&[u32]]| {
            let group = LocalGroup::start(&config, &LocalOptions::default()).unwrap();
            let results = plans(prompts, config.speculation.num_steps as u32)
                .into_iter()
                .map(|plan| group.step(plan).unwrap().outputs.remove(0));
            results.collect::<Vec<_>>()
        };
        let (good, bad): (&[u32], &[u32]) = (&[5, 6, 7, 8], &[5, 77, 7]);
        let alone = run(&[good]);
        for (both, alone) in run(&[good, bad]).iter().zip(&alone) {
            assert_eq!(both[0], alone[0]);
            assert!(!both[0].token_ids.is_empty());
            assert_eq!(both[1].slot, 1);
            assert!(both[1].token_ids.is_empty() && both[1].logprobs.is_empty());
        }
        for outputs in run(&[bad]) {
            assert!(outputs[0].token_ids.is_empty());
        }
    }
}
