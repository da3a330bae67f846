//! The digest that two ranks with other requests share.

use lockstep_types::Dtype;
use lockstep_types::step::{PlanPart, SlotExtend, StepDigests, StepPlan};

use super::support::{Request, config, load_alone, open};

/// Returns the digests after prefilling `prompt` in one step.
fn digests(prompt: &[u32], sample: bool) -> StepDigests {
    let config = config(1, 16, Dtype::Float32);
    let mut worker = load_alone(&config).unwrap();
    let plan = StepPlan {
        step: 1,
        parts: vec![PlanPart {
            opens: vec![open(0, &Request::greedy(prompt, 8))],
            extends: vec![SlotExtend {
                slot: 0,
                prefill_len: prompt.len() as u32,
                sample,
                new_pages: vec![1],
                ..SlotExtend::default()
            }],
            ..PlanPart::default()
        }],
        ..StepPlan::default()
    };
    worker.step(&plan).unwrap().digests
}

/// The digest of a DP rank differs where plans or tokens differ; the digest of all ranks
/// differs where the sizes of passes differ.
#[test]
fn each_digest_takes_in_its_own() {
    let base = digests(&[1, 2, 3], true);
    assert_eq!(base, digests(&[1, 2, 3], true));
    for (other, tensor, world) in [
        (digests(&[1, 2, 4], true), true, false),
        (digests(&[1, 2, 3], false), true, false),
        (digests(&[1, 2, 3, 4, 5], true), true, true),
    ] {
        assert_eq!(base.tensor != other.tensor, tensor, "{base:?} {other:?}");
        assert_eq!(base.world != other.world, world, "{base:?} {other:?}");
    }
}
