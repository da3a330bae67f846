//! The law of the text. χ² tests check that speculative decoding draws the same tokens as
//! sampling one by one, in every mode of verification. Toy models are small enough that the law
//! of their first three tokens is known exactly.
//!
//! Seeds are fixed, so a test that passes keeps passing. A right law exceeds the bounds with
//! probability 10⁻⁸. The wrong rules at the end show that a wrong law is far outside.

mod chi2;
mod schemes;
mod toy;
mod wrong;

use lockstep_speculation::TreeShape;
use lockstep_types::Verification;

use chi2::Fit;
use schemes::{Children, Scheme, Speculative};
use toy::Case;
use wrong::{Rule, Wrong};

/// Number of texts per case. Seven cases make more than a million per mode.
const TEXTS: u64 = 150_000;

/// Number of texts per case for rules that serve only as comparison.
const FEW: u64 = 30_000;

/// Counts the texts of every case, and compares them with the exact law.
fn follow_the_law(texts: u64, mut scheme: impl FnMut(&Case) -> Box<dyn Scheme>) {
    for case in Case::all() {
        let fit = Fit::of(&case, &mut *scheme(&case), texts);
        assert!(fit.fits(), "{}: {fit:?}", case.name);
    }
}

fn speculative(mode: Verification, widths: &'static [usize], children: Children, texts: u64) {
    follow_the_law(texts, |case| {
        Box::new(Speculative::new(case, mode, widths, children))
    });
}

#[test]
fn chains_by_rejection() {
    speculative(
        Verification::Rejection,
        &[1, 1, 1],
        Children::Sampled,
        TEXTS,
    );
}

#[test]
fn chains_as_blocks() {
    speculative(Verification::Block, &[1, 1, 1], Children::Sampled, TEXTS);
}

#[test]
fn trees_by_recursive_rejection() {
    speculative(Verification::Rejection, &[2, 2], Children::Sampled, TEXTS);
}

#[test]
fn trees_as_models_grow_them() {
    let shape = TreeShape {
        steps: 3,
        topk: 2,
        most: 6,
    };
    speculative(Verification::Rejection, &[], Children::Grown(shape), TEXTS);
}

#[test]
fn trees_with_certain_children() {
    speculative(Verification::Rejection, &[3, 2], Children::Likeliest, TEXTS);
}

#[test]
fn trees_with_sampled_and_certain_children() {
    speculative(Verification::Rejection, &[3, 1], Children::Mixed, FEW);
}

#[test]
fn trees_by_the_targets_own_tokens() {
    speculative(Verification::Target, &[2, 2], Children::Likeliest, TEXTS);
}

#[test]
fn trees_in_block_mode_are_verified_recursively() {
    speculative(Verification::Block, &[2, 1], Children::Sampled, FEW);
}

/// Sun et al., theorem 2: a block is accepted no shorter than token by token.
#[test]
fn blocks_accept_at_least_as_much_as_tokens() {
    let mut longer = false;
    for case in Case::all() {
        let accepted = |mode| {
            let widths = &[1, 1, 1];
            Speculative::new(&case, mode, widths, Children::Sampled).accepted(&case, TEXTS)
        };
        let (block, token) = (
            accepted(Verification::Block),
            accepted(Verification::Rejection),
        );
        // At most three tokens are accepted, so the deviation of a mean is below this.
        let deviation = 1.5 * (2.0 / TEXTS as f64).sqrt();
        assert!(
            block > token - 4.0 * deviation,
            "{}: {block} {token}",
            case.name
        );
        longer |= block > token + 5.0 * deviation;
    }
    assert!(longer, "no case in which blocks do better");
}

/// The right rules in textbook form pass. So the wrong rules do not fail because of that form.
#[test]
fn textbook_rules_follow_the_law() {
    follow_the_law(FEW, |_| Box::new(Wrong::new(Rule::Tokens)));
    follow_the_law(FEW, |_| Box::new(Wrong::new(Rule::Block)));
}

#[test]
fn wrong_rules_are_caught() {
    for rule in [
        Rule::InvertedRatio,
        Rule::ResidualIsTarget,
        Rule::BlockFirstFailure,
        Rule::BlockNumbersByPosition,
    ] {
        let caught = Case::all().iter().any(|case| {
            let fit = Fit::of(case, &mut Wrong::new(rule), FEW);
            !fit.fits()
        });
        assert!(caught, "{rule:?}");
    }
}
