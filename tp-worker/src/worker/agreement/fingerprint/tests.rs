use std::thread;

use lockstep_backend::ExchangeKind;
use lockstep_collective::local_group;
use lockstep_model::{Exit, Schedule, Topology};
use lockstep_types::Dtype;

use super::*;
use crate::worker::tests::support::{config, cpu, repository};

/// Returns the passes, the largest first, of a small model on `ranks` ranks in `dp_size` DP
/// ranks.
fn planned(ranks: usize, dp_size: usize) -> Vec<PassPlan> {
    let folder = repository().join("tests/fixtures/architectures/llama");
    let model = lockstep_model_folder::load(&folder).unwrap();
    let topology = Topology::new(1, ranks, dp_size);
    let schedule = Schedule::new(&model, topology, Axis::World, Exit::Logits, 8);
    let sizes = [8, 3, 1].into_iter();
    let plan = |tokens| PassPlan {
        key: PassKey {
            requests: tokens,
            tokens,
            max_q_len: tokens,
        },
        exchanges: schedule.exchanges(topology, tokens, Dtype::Bfloat16),
    };
    sizes.map(plan).collect()
}

/// Returns all lists that differ from `exchanges` by one wrong collective.
fn changed(exchanges: &[CollectiveCall]) -> Vec<Vec<CollectiveCall>> {
    let mut all = Vec::new();
    for at in 0..exchanges.len() {
        let mut with = |change: &dyn Fn(&mut Vec<CollectiveCall>)| {
            let mut list = exchanges.to_vec();
            change(&mut list);
            all.push(list);
        };
        let one = exchanges[at];
        with(&|list| {
            list.remove(at);
        });
        with(&|list| list.insert(at, one));
        with(&|list| list.swap(at, (at + 1) % exchanges.len()));
        with(&|list| list[at].elements += 1);
        with(&|list| list[at].elements -= 1);
        with(&|list| list[at].root += 1);
        with(&|list| {
            list[at].kind = match one.kind {
                ExchangeKind::AllReduce => ExchangeKind::ReduceScatter,
                _ => ExchangeKind::AllReduce,
            }
        });
        with(&|list| {
            list[at].dtype = match one.dtype {
                Dtype::Float32 => Dtype::Bfloat16,
                Dtype::Bfloat16 => Dtype::Float32,
            }
        });
        with(&|list| {
            list[at].axis = match one.axis {
                Axis::World => Axis::Attention,
                Axis::Attention | Axis::Alone => Axis::World,
            }
        });
    }
    all
}

/// Each collective of each pass goes wrong in turn, for several splits of the model.
#[test]
fn a_pass_with_one_other_collective_has_another_fingerprint() {
    for (ranks, dp_size) in [(2, 1), (4, 1), (2, 2), (4, 4), (4, 2)] {
        let right = planned(ranks, dp_size);
        let own = digest(&to_words(&right));
        assert_eq!(from_words(&to_words(&right)), right);
        let mut different = 0;
        for (number, pass) in right.iter().enumerate() {
            assert!(pass.exchanges.len() > 4, "{ranks} ranks, {dp_size}");
            for exchanges in changed(&pass.exchanges) {
                // Two equal collectives may change places: no rank would wait.
                let same = exchanges == pass.exchanges;
                let mut wrong = right.clone();
                wrong[number].exchanges = exchanges;
                assert_eq!(digest(&to_words(&wrong)) == own, same);
                let found = first_difference(&right, &wrong);
                assert_eq!(found.is_none(), same);
                if let Some((key, at, [ours, theirs])) = found {
                    let list = &wrong[number].exchanges;
                    assert_eq!(key, pass.key);
                    assert_eq!(ours, pass.exchanges.get(at).copied());
                    assert_eq!(theirs, list.get(at).copied());
                    assert_eq!(pass.exchanges[..at], list[..at]);
                    different += 1;
                }
            }
        }
        assert!(different > 100, "{different}");
    }
}

/// One of four ranks would exchange something else. All ranks learn which two differ, and at
/// which collective.
#[test]
fn ranks_with_other_passes_name_both_sides_and_the_collective() {
    let right = planned(4, 1);
    let mut smaller = right.clone();
    smaller[1].exchanges[2].elements -= 1;
    let fewer = right[..2].to_vec();
    let other_size = {
        let mut plans = right.clone();
        plans[0].key.tokens += 1;
        plans
    };
    for (wrong, at, tokens) in [(smaller, 2, 3), (fewer, 0, 1), (other_size, 0, 8)] {
        let ranks: Vec<_> = local_group(4)
            .into_iter()
            .enumerate()
            .map(|(rank, group)| {
                let passes = if rank == 2 {
                    wrong.clone()
                } else {
                    right.clone()
                };
                thread::spawn(move || {
                    let mut cpu = cpu(&config(4, 16, Dtype::Float32), Box::new(group));
                    compare(&mut cpu, &passes).unwrap_err()
                })
            })
            .collect();
        for (own, rank) in ranks.into_iter().zip(0..) {
            let error = own.join().unwrap();
            assert!(error.is_divergence());
            let text = error.to_string();
            let WorkerError::ExchangesDiffer {
                rank: reports,
                peer,
                key,
                at: found,
                ..
            } = error
            else {
                panic!("{text}");
            };
            assert_eq!((reports, found), (rank, at), "{text}");
            assert_eq!(peer, if rank == 2 { 0 } else { 2 }, "{text}");
            let own = if rank == 2 && tokens == 8 { 9 } else { tokens };
            assert_eq!(key.tokens, own, "{text}");
            assert!(text.contains("an all-reduce of"), "{text}");
        }
    }
}

#[test]
fn ranks_with_the_same_passes_agree_on_a_digest() {
    let ranks = local_group(2).into_iter().map(|group| {
        thread::spawn(move || {
            let mut cpu = cpu(&config(2, 16, Dtype::Float32), Box::new(group));
            let none = compare(&mut cpu, &[]).unwrap();
            (none, compare(&mut cpu, &planned(2, 1)).unwrap())
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let digests: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    assert_eq!(digests[0], digests[1]);
    assert_ne!(digests[0].0, digests[0].1);
}
