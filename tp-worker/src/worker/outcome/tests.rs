//! A GPU's choices from drafts and logits, compared with the host's verifier and sampler.

use std::sync::Arc;

use lockstep_backend::{
    Batch, Choice, ChoiceBatch, ChoiceLimits, ChoiceRow, DraftedRow, InputLimits, Row as BatchRow,
};
use lockstep_backend_cuda::{
    Compiler, Context, Element, Floats, Inputs, LogitRows, SamplingBuffers, SamplingKernels, Stream,
};
use lockstep_sampling::{Sampler, TokenHistory};
use lockstep_speculation::{Drafts, Node, Verifier, VerifyRow, is_chain, push_depths};
use lockstep_types::{Verification, sampling::SamplingParams};
use proptest::{prelude::*, strategy::ValueTree};

use super::Outcomes;

/// Number of tokens of the vocabulary.
const VOCAB: usize = 40;
/// Most tokens of a request, and most nodes.
const MOST: usize = 24;

/// A request whose drafts are verified.
#[derive(Debug, Clone)]
struct Row {
    params: SamplingParams,
    position: u64,
    /// Token of each drafted node, and its parent (modulo the node's number).
    nodes: Vec<(u32, u32)>,
    chain: bool,
    /// Logits of the root and of each node.
    logits: Vec<Vec<f32>>,
}

impl Row {
    fn nodes(&self) -> Vec<Node> {
        let node = |(before, (token, parent)): (u32, &(u32, u32))| Node {
            token: *token,
            parent: if self.chain {
                before
            } else {
                parent % (before + 1)
            },
        };
        (0..).zip(&self.nodes).map(node).collect()
    }
}

fn params() -> impl Strategy<Value = SamplingParams> {
    (
        prop_oneof![Just(0.0f32), 0.1f32..1.5],
        prop_oneof![Just(0u32), 1u32..20],
        prop_oneof![Just(1.0f32), 0.2f32..1.0],
        prop_oneof![Just(0.0f32), 0.0f32..0.4],
        any::<u64>(),
    )
        .prop_map(|(temperature, top_k, top_p, min_p, seed)| SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            seed,
            ..SamplingParams::default()
        })
}

fn rows() -> impl Strategy<Value = Vec<Row>> {
    let logit = prop_oneof![
        600 => -4f32..4.0,
        30 => Just(f32::NEG_INFINITY),
        1 => Just(f32::NAN),
    ];
    // A few tokens are likely, so that drafts of them are often accepted.
    let row = (prop::collection::vec(logit, VOCAB), 0..3usize).prop_map(|(mut row, likely)| {
        row[likely] += 9.0;
        row
    });
    let nodes = prop::collection::vec((0..4u32, any::<u32>()), 0..MOST);
    let one = (params(), 0..1u64 << 40, nodes, any::<bool>());
    let one = one.prop_flat_map(move |(params, position, nodes, chain)| {
        let logits = prop::collection::vec(row.clone(), nodes.len() + 1);
        logits.prop_map(move |logits| Row {
            params: params.clone(),
            position,
            nodes: nodes.clone(),
            chain,
            logits,
        })
    });
    prop::collection::vec(one, 1..6)
}

/// The words of all rows, and for each row the moves of nodes: from, to.
type Found = (Vec<u32>, Vec<Vec<(u32, u32)>>);

/// Returns what the host finds.
fn verified(rows: &[Row]) -> Found {
    let (mut outcomes, mut moves) = (Outcomes::new(rows.len(), MOST, MOST), Vec::new());
    outcomes.begin(rows.len());
    let mut sampler = Sampler::new(VOCAB);
    let mut verifier = Verifier::new(Verification::Target, VOCAB, MOST);
    for (at, row) in rows.iter().enumerate() {
        let mut drafts = Drafts::new(1, MOST, 0);
        drafts.begin(1);
        for node in row.nodes() {
            drafts.push(0, node);
        }
        let mut asked = VerifyRow {
            drafts: &drafts,
            row: 0,
            params: &row.params,
            history: &mut TokenHistory::default(),
            constraint: None,
            position: row.position,
            logprobs: None,
        };
        verifier.begin(&asked);
        for (number, logits) in (0..).zip(&row.logits) {
            // A row that fails at the root has no tokens.
            let _ = verifier.node(number, logits, &mut asked, &mut sampler);
        }
        let verified = verifier.finish(&mut asked);
        let path = (1..).zip(&verified.path);
        let moved = path.filter(|(to, from)| to != *from);
        moves.push(moved.map(|(to, from)| (*from, to)).collect());
        outcomes.set(at, (!verified.tokens.is_empty()).then_some(verified));
    }
    (outcomes.words, moves)
}

/// A device with kernels that choose.
struct Gpu {
    context: Arc<Context>,
    stream: Stream,
    choosing: SamplingKernels,
}

impl Gpu {
    fn new() -> Self {
        let context = Context::open(0).unwrap();
        let compiler = Compiler::new(context.gpu(), None).unwrap();
        Self {
            stream: Stream::new(&context).unwrap(),
            choosing: SamplingKernels::new(&context, &compiler).unwrap(),
            context,
        }
    }

    /// Returns what the device finds for all rows at once.
    fn accepted(&self, rows: &[Row]) -> Found {
        let (mut uses, mut drafted, mut parents) = (vec![], vec![], vec![]);
        let (mut ids, mut logits) = (vec![], vec![]);
        for (request, row) in (0..).zip(rows) {
            let nodes = row.nodes();
            let chain = is_chain(&nodes);
            drafted.push(DraftedRow {
                logits: ids.len() as u32,
                token: ids.len() as u32,
                nodes: nodes.len() as u32,
                parents: (!chain).then_some(parents.len() as u32),
            });
            if !chain {
                parents.extend(nodes.iter().map(|node| node.parent));
            }
            let mut depths = Vec::new();
            push_depths(&nodes, &mut depths);
            uses.extend(depths.into_iter().map(|depth| ChoiceRow { request, depth }));
            ids.push(0);
            ids.extend(nodes.iter().map(|node| node.token));
            logits.extend(row.logits.concat());
        }
        let choices = rows.iter().map(|row| Choice::of(&row.params, row.position));
        // Every token's cell has its own number, and every token's logits are wanted.
        let all: Vec<u32> = (0..ids.len() as u32).collect();
        let own = drafted.iter().map(|drafted| BatchRow {
            start: drafted.token,
            q_len: drafted.nodes + 1,
            kv_len: 0,
            pages_start: 0,
            mask: None,
        });
        let pass = Batch {
            tokens: &ids,
            positions: &ids,
            cells: &all,
            rows: &own.collect::<Vec<_>>(),
            pages: &[0; MOST],
            logit_tokens: &all,
            choices: ChoiceBatch {
                choices: &choices.collect::<Vec<_>>(),
                rows: &uses,
                drafted: &drafted,
                parents: &parents,
            },
            ..Batch::default()
        };
        let mut limits = InputLimits::of(&pass, 1);
        limits.choices = ChoiceLimits {
            most: MOST,
            ..limits.choices
        };
        let (context, stream) = (&self.context, &self.stream);
        let mut inputs = Inputs::new(context, limits).unwrap();
        inputs.stage(stream, &pass).unwrap();
        let mut on_device = Floats::new(context, Element::F32, logits.len(), "logits").unwrap();
        on_device.upload(stream, &logits).unwrap();
        let mut room = SamplingBuffers::new(stream, ids.len()).unwrap();
        let all = 0..ids.len();
        let logits = LogitRows {
            floats: &mut on_device,
            vocab: VOCAB,
            first: 0,
        };
        self.choosing
            .choose(stream, logits, all, &mut inputs, &mut room)
            .unwrap();
        self.choosing.accept(stream, &mut inputs).unwrap();
        let words = inputs.outcomes(stream).unwrap().words.to_vec();
        let mut moves = inputs.chosen().read_moves(stream, rows.len()).unwrap();
        for (moves, drafted) in moves.iter_mut().zip(&drafted) {
            let own = |cell: &mut u32| *cell -= drafted.token;
            moves
                .iter_mut()
                .for_each(|(from, to)| [from, to].into_iter().for_each(own));
        }
        (words, moves)
    }
}

#[test]
fn a_gpu_accepts_what_the_verifier_accepts() {
    let gpu = Gpu::new();
    let _order = lockstep_fake_cuda::order(3);
    let (mut accepted, mut moved) = (0, 0);
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(60)
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let done = runner.run(&rows(), |rows| {
        let wanted = verified(&rows);
        prop_assert_eq!(&gpu.accepted(&rows), &wanted);
        Ok(())
    });
    done.unwrap();
    // The rows had accepted drafts and moved nodes.
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..200 {
        let rows = rows().new_tree(&mut runner).unwrap().current();
        let (words, moves) = verified(&rows);
        let counts = words.chunks(2 * MOST).map(|words| words[0] as usize - 1);
        accepted += counts.sum::<usize>();
        moved += moves.concat().len();
    }
    assert!(accepted > 200 && moved > 50, "{accepted} {moved}");
}
