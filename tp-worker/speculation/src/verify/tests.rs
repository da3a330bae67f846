use lockstep_sampling::{DraftKey, DraftSampler, allows};
use proptest::prelude::*;

use super::*;

/// Number of tokens of the toy vocabulary.
const VOCAB: usize = 12;

/// All inputs of a row.
#[derive(Debug, Clone)]
struct Setup {
    params: SamplingParams,
    prompt: Vec<u32>,
    output: Vec<u32>,
    /// For each node, its parent (modulo the node's number), and its token if it is not
    /// sampled.
    nodes: Vec<(u32, u32)>,
    /// Logits by the last token.
    logits: Vec<Vec<f32>>,
    /// Key of the row's constraint, if it has one.
    rule: Option<u64>,
}

/// A constraint that allows other tokens after every text.
#[derive(Debug)]
struct Rule {
    key: u64,
    taken: Vec<u32>,
    allowed: [u32; 1],
}

impl Rule {
    fn of(key: u64) -> Self {
        let taken = Vec::new();
        let allowed = [0];
        Self {
            key,
            taken,
            allowed,
        }
    }
}

impl TokenConstraint for Rule {
    fn allowed(&mut self) -> Result<&[u32], SamplingError> {
        let mut digest = lockstep_adaptive::Digest::new();
        digest.word(self.key);
        digest.list(&self.taken);
        let value = digest.value();
        let bits = value as u32 & (value >> 32) as u32 & ((1 << VOCAB) - 1);
        self.allowed = [bits | 1 << (value % VOCAB as u64)];
        Ok(&self.allowed)
    }

    fn take(&mut self, token: u32) -> Result<(), SamplingError> {
        assert!(allows(self.allowed()?, token), "forbidden");
        self.taken.push(token);
        Ok(())
    }

    fn give_back(&mut self, tokens: usize) -> Result<(), SamplingError> {
        self.taken.truncate(self.taken.len() - tokens);
        Ok(())
    }
}

impl Setup {
    fn history(&self) -> TokenHistory {
        let mut history = TokenHistory::default();
        if self.params.has_penalties() {
            history.reset(&self.prompt);
            self.output.iter().for_each(|token| history.push(*token));
        }
        history
    }

    /// Returns tokens and log-probabilities of a text by plain sampling.
    fn plain(&self, count: usize, top: usize) -> (Vec<u32>, Vec<TokenLogprob>) {
        let mut history = self.history();
        let mut sampler = Sampler::new(VOCAB);
        let mut rule = self.rule.map(Rule::of);
        let mut last = self.output.last().copied().unwrap_or(0);
        (0..count as u64)
            .map(|at| {
                let logits = &self.logits[last as usize];
                let request = Request {
                    params: &self.params,
                    history: &history,
                    position: self.output.len() as u64 + at,
                    allowed: rule.as_mut().map(|rule| rule.allowed().unwrap()),
                };
                last = sampler.sample(logits, request).unwrap();
                if let Some(rule) = &mut rule {
                    rule.take(last).unwrap();
                }
                if self.params.has_penalties() {
                    history.push(last);
                }
                (last, token_logprob(logits, last, top).unwrap())
            })
            .unzip()
    }

    fn drafts(&self, sampled: bool, chain: bool) -> Drafts {
        let mut drafts = Drafts::new(2, self.nodes.len(), if sampled { VOCAB } else { 0 });
        drafts.begin(2);
        let mut sampler = DraftSampler::new(VOCAB);
        for (number, (parent, token)) in (1..).zip(&self.nodes) {
            let parent = match chain {
                true => number - 1,
                false => parent % number,
            };
            let mut token = *token;
            if sampled {
                let last = match parent {
                    0 => self.output.last().copied().unwrap_or(0),
                    parent => drafts.nodes(1)[parent as usize - 1].token,
                };
                // The draft's logits are near the target's, so that some drafts are accepted.
                let noisy = self.logits[last as usize].iter().enumerate();
                let noisy: Vec<f32> = noisy.map(|(t, l)| l + (t % 3) as f32 * 0.2).collect();
                sampler.set(&noisy, None, self.params.temperature).unwrap();
                let key = DraftKey {
                    seed: self.params.seed,
                    position: self.output.len() as u64,
                    node: number,
                };
                token = sampler.draw(key).unwrap();
                drafts.distribution(1).copy_from_slice(sampler.law());
            }
            drafts.push(1, Node { token, parent });
        }
        drafts
    }

    /// Verifies row 1. The logits of the nodes in `spoilt` are NaN.
    fn verify(
        &self,
        mode: Verification,
        drafts: &Drafts,
        spoilt: impl Fn(u32) -> bool,
    ) -> (Result<(), SamplingError>, Verified, TokenHistory) {
        let mut history = self.history();
        let mut rule = self.rule.map(Rule::of);
        let mut verifier = Verifier::new(mode, VOCAB, self.nodes.len());
        let mut sampler = Sampler::new(VOCAB);
        let mut row = VerifyRow {
            drafts,
            row: 1,
            params: &self.params,
            history: &mut history,
            constraint: rule.as_mut().map(|rule| rule as &mut dyn TokenConstraint),
            position: self.output.len() as u64,
            logprobs: Some(2),
        };
        verifier.begin(&row);
        let mut result = Ok(());
        for number in 0..=self.nodes.len() as u32 {
            let last = match number {
                0 => self.output.last().copied().unwrap_or(0),
                number => drafts.nodes(1)[number as usize - 1].token,
            };
            let mut logits = self.logits[last as usize].clone();
            if spoilt(number) {
                logits.fill(f32::NAN);
            }
            let taken = verifier.node(number, &logits, &mut row, &mut sampler);
            result = result.and(taken);
        }
        let verified = verifier.finish(&mut row).clone();
        if let Some(rule) = rule {
            assert_eq!(rule.taken, verified.tokens);
        }
        (result, verified, history)
    }

    /// Counts the drafts that the rule forbids behind the root and the nodes of the path.
    fn forbidden(&self, drafts: &Drafts, verified: &Verified) -> u32 {
        let Some(mut rule) = self.rule.map(Rule::of) else {
            return 0;
        };
        let nodes = [0].into_iter().chain(verified.path.iter().copied());
        let mut count = 0;
        for (node, token) in nodes.zip(&verified.tokens) {
            let allowed = rule.allowed().unwrap()[0];
            let children = drafts.nodes(1).iter().filter(|child| child.parent == node);
            count += children
                .filter(|child| allowed >> child.token & 1 == 0)
                .count();
            rule.take(*token).unwrap();
        }
        count as u32
    }

    /// Checks the rules for every row that succeeds.
    fn check(&self, drafts: &Drafts, verified: &Verified, history: &TokenHistory) {
        let nodes = drafts.nodes(1);
        assert_eq!(verified.tokens.len(), verified.path.len() + 1);
        let mut parent = 0;
        for (number, token) in verified.path.iter().zip(&verified.tokens) {
            let node = nodes[*number as usize - 1];
            assert_eq!((node.parent, node.token), (parent, *token));
            parent = *number;
        }
        let mut last = self.output.last().copied().unwrap_or(0);
        assert_eq!(verified.logprobs.len(), verified.tokens.len());
        for (token, logprob) in verified.tokens.iter().zip(&verified.logprobs) {
            let expected = token_logprob(&self.logits[last as usize], *token, 2);
            assert_eq!(&expected.unwrap(), logprob);
            last = *token;
        }
        let mut expected = self.history();
        if self.params.has_penalties() {
            verified
                .tokens
                .iter()
                .for_each(|token| expected.push(*token));
        }
        assert_eq!(history, &expected);
    }
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let law = (
        prop_oneof![Just(0.0f32), 0.2f32..1.5],
        prop_oneof![Just(0u32), 1u32..10],
        prop_oneof![Just(1.0f32), 0.3f32..1.0],
        prop_oneof![Just(0.0f32), 0.0f32..0.3],
    );
    let penalties = prop_oneof![
        Just((0.0f32, 0.0f32, 1.0f32)),
        (-1.0f32..1.0, -1.0f32..1.0, 0.7f32..1.5)
    ];
    let bias = prop::collection::btree_map(0..VOCAB as u32, -3f32..3.0, 0..3);
    let stops = prop::collection::btree_set(0..VOCAB as u32, 0..3);
    (law, penalties, bias, stops, 0u32..6, any::<u64>()).prop_map(
        |((temperature, top_k, top_p, min_p), penalties, bias, stops, min, seed)| SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            presence_penalty: penalties.0,
            frequency_penalty: penalties.1,
            repetition_penalty: penalties.2,
            logit_bias: bias.into_iter().collect(),
            seed,
            min_new_tokens: min,
            stop_token_ids: stops.into_iter().collect(),
            ignore_eos: false,
        },
    )
}

fn setups() -> impl Strategy<Value = Setup> {
    let token = 0..VOCAB as u32;
    let row = prop::collection::vec(-3f32..3.0, VOCAB);
    (
        params(),
        prop::collection::vec(token.clone(), 1..4),
        prop::collection::vec(token.clone(), 0..4),
        prop::collection::vec((any::<u32>(), token), 0..9),
        prop::collection::vec(row, VOCAB),
        prop::option::of(any::<u64>()),
    )
        .prop_map(|(params, prompt, output, nodes, logits, rule)| Setup {
            params,
            prompt,
            output,
            nodes,
            logits,
            rule,
        })
}

/// Makes the nodes a path of exactly the tokens of plain sampling, so that there is a long path
/// to accept.
fn on_the_path(mut setup: Setup) -> Setup {
    let (plain, _) = setup.plain(setup.nodes.len(), 0);
    for (number, (node, token)) in setup.nodes.iter_mut().zip(plain).enumerate() {
        *node = (number as u32, token);
    }
    setup
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// In mode `target`, and in every mode without sampled drafts or with temperature 0, the
    /// text equals that of sampling token by token, whatever was drafted.
    #[test]
    fn coupled_text_is_plain_text(
        setup in prop_oneof![setups(), setups().prop_map(on_the_path)],
        mode in prop::sample::select(&[
            Verification::Target,
            Verification::Rejection,
            Verification::Block,
        ][..]),
        sampled in any::<bool>(),
        chain in any::<bool>(),
    ) {
        let coupled = mode == Verification::Target || setup.params.temperature == 0.0;
        let drafts = setup.drafts(sampled && coupled, chain);
        let (result, verified, history) = setup.verify(mode, &drafts, |_| false);
        prop_assert_eq!(result, Ok(()));
        setup.check(&drafts, &verified, &history);
        let (tokens, logprobs) = setup.plain(verified.tokens.len(), 2);
        prop_assert_eq!(&verified.tokens, &tokens);
        prop_assert_eq!(&verified.logprobs, &logprobs);
        prop_assert_eq!(verified.cut, setup.forbidden(&drafts, &verified));
        // The path ends only where no child has the token.
        let last = verified.path.last().copied().unwrap_or(0);
        let end = verified.tokens.last().copied();
        let mut left = children(drafts.nodes(1), last);
        prop_assert!(left.all(|(_, node)| Some(node.token) != end));
    }

    /// Sampled drafts in every mode: path, history and log-probabilities agree
    /// with the tokens.
    #[test]
    fn sampled_rows_are_consistent(
        setup in setups(),
        mode in prop::sample::select(&[Verification::Rejection, Verification::Block][..]),
        chain in any::<bool>(),
    ) {
        let drafts = setup.drafts(true, chain);
        let (result, verified, history) = setup.verify(mode, &drafts, |_| false);
        prop_assert_eq!(result, Ok(()));
        setup.check(&drafts, &verified, &history);
    }

    /// Logits off the path may be anything. Bad logits at the root fail the row. Bad logits on
    /// the path end the path before them.
    #[test]
    fn bad_logits_matter_on_the_path_alone(
        setup in prop_oneof![setups(), setups().prop_map(on_the_path)],
        mode in prop::sample::select(&[
            Verification::Target,
            Verification::Rejection,
            Verification::Block,
        ][..]),
        chain in any::<bool>(),
    ) {
        let drafts = setup.drafts(mode != Verification::Target, chain);
        let (_, good, good_history) = setup.verify(mode, &drafts, |_| false);
        let path = |number: u32| number == 0 || good.path.contains(&number);
        let block = mode == Verification::Block;
        if !block {
            let (result, verified, history) =
                setup.verify(mode, &drafts, |number| !path(number));
            prop_assert_eq!(result, Ok(()));
            prop_assert_eq!(&verified, &good);
            prop_assert_eq!(history, good_history);
        }
        let (result, verified, history) = setup.verify(mode, &drafts, |number| number == 0);
        prop_assert_eq!(result, Err(SamplingError::NotFinite { token: 0 }));
        prop_assert_eq!(verified, Verified::default());
        prop_assert_eq!(history, setup.history());
        for bad in &good.path {
            let (result, verified, history) = setup.verify(mode, &drafts, |n| n == *bad);
            prop_assert_eq!(result, Ok(()));
            setup.check(&drafts, &verified, &history);
            let before = good.path.iter().position(|n| n == bad).unwrap();
            prop_assert!(verified.path.len() <= before);
            if !block {
                prop_assert_eq!(&verified.tokens, &good.tokens[..=before]);
            }
        }
    }
}

/// A drafter may give a distribution that lacks its own token, or a token past the vocabulary.
/// Verification still works, and costs time only.
#[test]
fn odd_drafts_are_verified() {
    for (token, mode) in [
        (3, Verification::Rejection),
        (3, Verification::Block),
        (99, Verification::Rejection),
        (99, Verification::Block),
    ] {
        let mut drafts = Drafts::new(1, 2, 4);
        drafts.begin(1);
        for parent in 0..2 {
            drafts.distribution(0)[1] = 1.0;
            drafts.push(0, Node { token, parent });
        }
        let (params, mut history) = (SamplingParams::default(), TokenHistory::default());
        let mut row = VerifyRow {
            drafts: &drafts,
            row: 0,
            params: &params,
            history: &mut history,
            constraint: None,
            position: 0,
            logprobs: None,
        };
        let mut verifier = Verifier::new(mode, 4, 2);
        let mut sampler = Sampler::new(4);
        verifier.begin(&row);
        for number in 0..3 {
            let logits = [0.0, 0.0, 0.0, f32::NEG_INFINITY];
            let taken = verifier.node(number, &logits, &mut row, &mut sampler);
            taken.unwrap();
        }
        let verified = verifier.finish(&mut row);
        assert_eq!(verified.tokens.len(), 1);
        assert!(verified.tokens[0] < 3);
    }
}

/// Beside a row that was drawn may be one that was not.
#[test]
fn each_row_is_verified_by_what_was_drawn_for_it() {
    let mut drafts = Drafts::new(2, 1, 4);
    drafts.begin(2);
    drafts.distribution(1)[1] = 1.0;
    for row in 0..2 {
        drafts.push(
            row,
            Node {
                token: 1,
                parent: 0,
            },
        );
    }
    for (mode, temperature, drawn) in [
        (Verification::Target, 1.0, true),
        (Verification::Rejection, 1.0, false),
        (Verification::Block, 1.0, false),
        (Verification::Rejection, 0.0, true),
    ] {
        let params = SamplingParams {
            temperature,
            ..SamplingParams::default()
        };
        let verifier = Verifier::new(mode, 4, 1);
        let samples = [0, 1].map(|row| verifier.samples(&drafts, row, &params));
        assert_eq!(samples, [true, drawn], "{mode:?} {temperature}");
    }
}

/// A distribution belongs to the step in which it was given.
#[test]
fn distributions_do_not_outlive_their_step() {
    let mut drafts = Drafts::new(1, 1, 4);
    let node = Node {
        token: 1,
        parent: 0,
    };
    for sampled in [true, false] {
        drafts.begin(1);
        if sampled {
            drafts.distribution(0)[1] = 1.0;
        }
        drafts.push(0, node);
        assert_eq!(drafts.probabilities(0, 1).is_some(), sampled);
    }
}
