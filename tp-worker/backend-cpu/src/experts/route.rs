//! Routes of a mixture of experts: the experts that each row chooses, and the rows of each
//! expert.

mod groups;

use lockstep_types::RouterWeights;

use crate::exp::exp;
use crate::isa::Isa;
use crate::multiversion::multiversion;
use crate::partition::{Shared, for_rows};
use crate::pool::Pool;
use groups::Open;

/// Least weight that a sigmoid gives. Published models add as much to the sums that they divide by.
const LEAST: f32 = 1e-20;

/// Place of a choice whose expert is on another rank.
pub(super) const ELSEWHERE: u32 = u32::MAX;

/// Rule by which rows choose experts.
pub(super) struct Rule<'a> {
    /// Weights of the chosen experts.
    pub routing: lockstep_types::Routing,
    /// Values that are added to the weights for the choice.
    pub correction: Option<&'a [f32]>,
    /// Factors of the weights of the chosen experts.
    pub scales: Option<&'a [f32]>,
    /// Experts that are chosen from, on all ranks.
    pub scored: usize,
    /// Number of the first of these that is here.
    pub first: usize,
    /// Experts here behind those that are chosen from, which each row goes through with the weight
    /// one.
    pub shared: usize,
}

/// Routes of `rows` rows among the experts that are here. A row has `active` choices, which are
/// numbered row after row, and in a row by ascending expert.
pub(super) struct Routing<'a> {
    active: usize,
    /// First choice of each expert in the order by experts, and behind the last expert the number
    /// of all choices that are here.
    pub starts: &'a mut [u32],
    /// Space, as long as `starts`.
    pub firsts: &'a mut [u32],
    /// Row of each choice, in the order by experts.
    pub order: &'a mut [u32],
    /// Place of each choice in the order by experts, or [`ELSEWHERE`]. Before [`Self::sort`], its
    /// expert among those that are here, or [`ELSEWHERE`].
    pub places: &'a mut [u32],
    /// Weight of each choice.
    pub weights: &'a mut [f32],
}

impl<'a> Routing<'a> {
    /// Words of memory for the routes of `rows` rows.
    pub fn words(rows: usize, count: usize, active: usize) -> usize {
        let lists = count.saturating_add(1).saturating_mul(2);
        lists.saturating_add(rows.saturating_mul(active).saturating_mul(3))
    }

    /// Lays routes of `rows` rows among `count` experts in `memory`, which holds
    /// [`Self::words`] words or more.
    pub fn new(memory: &'a mut [u32], rows: usize, count: usize, active: usize) -> Self {
        let choices = rows * active;
        let (starts, rest) = memory.split_at_mut(count + 1);
        let (firsts, rest) = rest.split_at_mut(count + 1);
        let (order, rest) = rest.split_at_mut(choices);
        let (places, rest) = rest.split_at_mut(choices);
        Self {
            active,
            starts,
            firsts,
            order,
            places,
            weights: bytemuck::cast_slice_mut(&mut rest[..choices]),
        }
    }

    /// Chooses each row's experts by its `scores`, which are overwritten.
    pub fn choose(&mut self, pool: &mut Pool, isa: Isa, scores: &mut [f32], rule: &Rule<'_>) {
        let (active, count) = (self.active, rule.scored);
        let held = (self.starts.len() - 1 - rule.shared) as u32;
        let first = rule.first as u32;
        let (places, weights) = (Shared::new(self.places), Shared::new(self.weights));
        for_rows(pool, scores, count, |rows, scores| {
            for (row, scores) in rows.zip(scores.chunks_exact_mut(count)) {
                let choices = row * active..(row + 1) * active;
                // SAFETY: each row's choices are its own, and each row is visited once.
                let (experts, weights) =
                    unsafe { (places.slice(choices.clone()), weights.slice(choices)) };
                let (chosen, shared) = experts.split_at_mut(active - rule.shared);
                let (weights, ones) = weights.split_at_mut(active - rule.shared);
                match rule.routing.weights {
                    RouterWeights::Softmax => softmax(isa, scores),
                    RouterWeights::Sigmoid => sigmoids(isa, scores),
                }
                let open = Open::of(scores, rule.correction, rule.routing.groups);
                largest(scores, rule.correction, open, chosen, weights);
                weigh(rule, chosen, weights);
                for expert in chosen {
                    let here = expert.wrapping_sub(first);
                    *expert = if here < held { here } else { ELSEWHERE };
                }
                shared.iter_mut().zip(held..).for_each(|(to, at)| *to = at);
                ones.fill(1.0);
            }
        });
    }

    /// Number of choices whose expert is here, once they are sorted.
    pub fn here(&self) -> usize {
        self.starts.last().map_or(0, |all| *all as usize)
    }

    /// Sorts all choices that are here by expert; those of one expert stay in the order of rows.
    pub fn sort(&mut self) {
        self.starts.fill(0);
        for &expert in self.places.iter().filter(|place| **place != ELSEWHERE) {
            self.starts[expert as usize + 1] += 1;
        }
        let mut sum = 0;
        for start in &mut *self.starts {
            sum += *start;
            *start = sum;
        }
        self.firsts.copy_from_slice(self.starts);
        let choices = self.places.iter_mut().enumerate();
        for (choice, place) in choices.filter(|(_, place)| **place != ELSEWHERE) {
            let next = &mut self.firsts[*place as usize];
            *place = *next;
            *next += 1;
            self.order[*place as usize] = (choice / self.active) as u32;
        }
    }
}

multiversion! {
    /// Turns each score into its logistic function.
    fn logistic(scores: &mut [f32]) {
        for score in scores {
            *score = 1.0 / (1.0 + exp(-*score));
        }
    }
}

/// Turns the scores of a row into weights, each by itself. A score that is not finite makes all of
/// them NaN. Sums of chosen weights are above zero, since the least weight is.
fn sigmoids(isa: Isa, scores: &mut [f32]) {
    let finite = scores.iter().all(|score| score.is_finite());
    logistic(isa, scores);
    for weight in scores {
        *weight = if finite { weight.max(LEAST) } else { f32::NAN };
    }
}

multiversion! {
    /// Turns scores into their exponentials, after the largest is subtracted.
    fn exponentials(scores: &mut [f32], largest: f32) {
        for score in scores {
            *score = exp(*score - largest);
        }
    }
}

/// Turns the scores of a row into weights, none of which has a sign. A score that is not finite
/// makes all of them NaN.
fn softmax(isa: Isa, scores: &mut [f32]) {
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    exponentials(isa, scores, largest);
    let sum = scores.iter().fold(0.0, |sum, weight| sum + weight);
    for weight in scores {
        *weight = (*weight / sum).abs();
    }
}

/// Divides the weights of a row's `chosen` experts by their sum, if the rule says so, and multiplies
/// them.
fn weigh(rule: &Rule<'_>, chosen: &[u32], weights: &mut [f32]) {
    if rule.routing.renormalized {
        let sum = weights.iter().fold(0.0, |sum, weight| sum + weight);
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
    let factor = rule.routing.factor;
    weights.iter_mut().for_each(|weight| *weight *= factor);
    if let Some(scales) = rule.scales {
        let own = chosen.iter().map(|expert| scales[*expert as usize]);
        let scaled = weights.iter_mut().zip(own);
        scaled.for_each(|(weight, own)| *weight *= own);
    }
}

/// Chooses the `open` experts of the largest weights with their corrections, of equal ones the lower,
/// and lists them ascending. Weights without order are chosen after all others, or in the order of
/// experts. The signs of `weights` are overwritten.
fn largest(
    weights: &mut [f32],
    correction: Option<&[f32]>,
    open: Open,
    experts: &mut [u32],
    chosen: &mut [f32],
) {
    for _ in 0..experts.len() {
        let mut best: Option<(usize, f32)> = None;
        for (expert, &weight) in weights.iter().enumerate() {
            let free = weight.is_sign_positive() && open.has(expert);
            let worth = weight + correction.map_or(0.0, |values| values[expert]);
            if free && best.is_none_or(|(_, most)| worth > most) {
                best = Some((expert, worth));
            }
        }
        if let Some((expert, _)) = best {
            weights[expert] = -weights[expert];
        }
    }
    let marked = weights.iter().enumerate();
    let marked = marked.filter(|(_, weight)| weight.is_sign_negative());
    let slots = experts.iter_mut().zip(chosen);
    for ((slot, chosen), (expert, weight)) in slots.zip(marked) {
        (*slot, *chosen) = (expert as u32, weight.abs());
    }
}

#[cfg(test)]
mod tests {
    use lockstep_types::{ExpertGroups, GroupWorth};

    use super::*;

    fn routed(
        scores: &[f32],
        count: usize,
        active: usize,
        renormalized: bool,
    ) -> (Vec<u32>, Vec<u32>, Vec<u32>, Vec<f32>) {
        let rule = Rule {
            routing: lockstep_types::Routing::softmax(renormalized),
            correction: None,
            scales: None,
            scored: count,
            first: 0,
            shared: 0,
        };
        routed_by(&rule, scores, count, active)
    }

    /// Routes rows of as many scores as the rule has experts, of which `active` are chosen and
    /// `count` are here.
    fn routed_by(
        rule: &Rule<'_>,
        scores: &[f32],
        count: usize,
        active: usize,
    ) -> (Vec<u32>, Vec<u32>, Vec<u32>, Vec<f32>) {
        let mut pool = Pool::new(2, None, false).unwrap();
        let rows = scores.len() / rule.scored;
        let (all, taken) = (count + rule.shared, active + rule.shared);
        let mut memory = vec![7; Routing::words(rows, all, taken)];
        let mut routing = Routing::new(&mut memory, rows, all, taken);
        routing.choose(&mut pool, Isa::detect(), &mut scores.to_vec(), rule);
        routing.sort();
        (
            routing.starts.to_vec(),
            routing.order.to_vec(),
            routing.places.to_vec(),
            routing.weights.to_vec(),
        )
    }

    #[test]
    fn choices_are_sorted_by_expert_and_then_by_row() {
        let scores = [
            1.0, 5.0, 2.0, 4.0, // experts 1 and 3
            9.0, 1.0, 8.0, 0.0, // experts 0 and 2
            0.0, 3.0, 1.0, 4.0, // experts 1 and 3
        ];
        let (starts, order, places, weights) = routed(&scores, 4, 2, false);
        assert_eq!(starts, [0, 1, 3, 4, 6]);
        assert_eq!(order, [1, 0, 2, 1, 0, 2]);
        assert_eq!(places, [1, 4, 0, 3, 2, 5]);
        let total: f64 = [1.0f64, 5.0, 2.0, 4.0].iter().map(|x| x.exp()).sum();
        let error = |weight: f32, score: f64| (f64::from(weight) - score.exp() / total).abs();
        assert!(error(weights[0], 5.0) < 1e-6 && error(weights[1], 4.0) < 1e-6);
        let (.., weights) = routed(&scores, 4, 2, true);
        assert!(
            weights
                .chunks(2)
                .all(|pair| (pair[0] + pair[1] - 1.0).abs() < 1e-6)
        );
    }

    /// The second and the third of four experts are here, and a shared one.
    #[test]
    fn choices_of_experts_elsewhere_have_no_place() {
        let rule = Rule {
            routing: lockstep_types::Routing::softmax(true),
            correction: None,
            scales: None,
            scored: 4,
            first: 1,
            shared: 1,
        };
        let scores = [
            1.0, 5.0, 2.0, 5.0, // experts 1 and 3
            9.0, 1.0, 0.0, 9.0, // experts 0 and 3
            0.0, 3.0, 3.0, 1.0, // experts 1 and 2
        ];
        let (starts, order, places, weights) = routed_by(&rule, &scores, 2, 2);
        assert_eq!(starts, [0, 2, 3, 6]);
        assert_eq!(order[..6], [0, 2, 2, 0, 1, 2]);
        let none = ELSEWHERE;
        assert_eq!(places, [0, none, 3, none, none, 4, 1, 2, 5]);
        assert_eq!(
            weights,
            [0.5, 0.5, 1.0].repeat(3),
            "weights are those of all"
        );
    }

    #[test]
    fn of_equal_experts_the_lower_are_chosen() {
        for count in [4, 8, 64, 256] {
            let equal = vec![0.5; count];
            let (starts, order, places, weights) = routed(&equal, count, 3, true);
            assert_eq!(places, [0, 1, 2]);
            assert_eq!((starts[3], starts[count]), (3, 3));
            assert_eq!((order, weights), (vec![0; 3], vec![1.0 / 3.0; 3]));
        }
        // The second place is tied between the experts 1, 4 and 6.
        let scores = [0.0, 2.0, 1.0, 3.0, 2.0, 1.0, 2.0, 0.0];
        let (starts, ..) = routed(&scores, 8, 2, false);
        assert_eq!(starts, [0, 0, 1, 1, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn a_row_that_is_not_finite_chooses_experts_and_spoils_itself_alone() {
        for bad in [f32::NAN, f32::INFINITY] {
            let scores = [1.0, 5.0, 2.0, 4.0, 1.0, bad, 2.0, 4.0];
            let (starts, .., weights) = routed(&scores, 4, 2, true);
            assert_eq!(starts[4], 4);
            assert!(weights[..2].iter().all(|weight| weight.is_finite()));
            assert!(weights[2..].iter().all(|weight| weight.is_nan()));
        }
    }

    /// Choices go by corrected weights, and results by the weights as they are.
    #[test]
    fn corrections_choose_and_weigh_nothing() {
        let rule = Rule {
            routing: lockstep_types::Routing {
                weights: RouterWeights::Sigmoid,
                renormalized: true,
                factor: 2.5,
                corrected: true,
                groups: None,
            },
            correction: Some(&[0.0, -2.0, 0.0, 3.0]),
            scales: None,
            scored: 4,
            first: 0,
            shared: 2,
        };
        let sigmoid = |score: f32| 1.0 / (1.0 + (-score).exp());
        let scores = [0.5, 4.0, 0.25, -3.0, -1.0, 9.0, -1.0, -60.0];
        let (starts, order, _, weights) = routed_by(&rule, &scores, 4, 2);
        // Both rows choose the experts 0 and 3, and take the shared experts 4 and 5.
        assert_eq!(starts, [0, 2, 2, 2, 4, 6, 8]);
        assert_eq!(order, [0, 1, 0, 1, 0, 1, 0, 1]);
        for (weights, [first, second]) in weights.chunks(4).zip([[0.5, -3.0], [-1.0, -60.0]]) {
            let sum = sigmoid(first) + sigmoid(second);
            let expected = [first, second].map(|score| 2.5 * sigmoid(score) / sum);
            assert!((weights[0] - expected[0]).abs() < 1e-6, "{weights:?}");
            assert!((weights[1] - expected[1]).abs() < 1e-6, "{weights:?}");
            assert_eq!(weights[2..], [1.0; 2]);
        }
        // A group of negative worths keeps out those of other groups, which are worth more than it.
        let grouped = Rule {
            routing: lockstep_types::Routing {
                groups: Some(ExpertGroups {
                    count: 2,
                    chosen: 1,
                    worth: GroupWorth::TwoLargest,
                }),
                ..rule.routing
            },
            correction: Some(&[-0.9, -0.9, -0.8, -9.0]),
            ..rule
        };
        let (starts, ..) = routed_by(&grouped, &[0.0, 0.0, 3.0, 0.0], 4, 2);
        assert_eq!(starts, [0, 1, 2, 2, 2, 3, 4]);
        // Weights that vanish are still weights.
        let (.., weights) = routed_by(&rule, &[-1e6; 4], 4, 2);
        assert_eq!(weights, [1.25, 1.25, 1.0, 1.0]);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (.., weights) = routed_by(&rule, &[bad, 0.0, 0.0, 0.0], 4, 2);
            assert!(weights[..2].iter().all(|weight| weight.is_nan()));
        }
    }
}
