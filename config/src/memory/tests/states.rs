//! Recurrent states of a model of which one layer is recurrent.

use lockstep_types::{GatedDeltaNames, GatedDeltaSpec, Mixer, StateLimits};

use super::{super::states::count, *};

/// The model with a recurrent first layer.
fn hybrid() -> &'static ModelConfig {
    static MODEL: OnceLock<ModelConfig> = OnceLock::new();
    MODEL.get_or_init(|| {
        let mut model = model();
        model.layers[0].mixer = Mixer::GatedDelta(GatedDeltaSpec {
            key_heads: 2,
            value_heads: 4,
            key_dim: 16,
            value_dim: 16,
            taps: 4,
            names: GatedDeltaNames::default(),
        });
        model
    })
}

/// Sizing of the hybrid for `requests` requests.
fn of_hybrid(requests: usize) -> Sizing<'static> {
    let mut sizing = Sizing {
        mem_fraction_static: 1.0,
        ..sizing()
    };
    sizing.engine.model = hybrid();
    sizing.engine.step = step(requests, Some(64));
    sizing
}

fn with_number(states: usize) -> StateOptions {
    StateOptions {
        max_mamba_cache_size: Some(states),
        ..StateOptions::default()
    }
}

fn with_ratio(ratio: Option<f64>) -> StateOptions {
    StateOptions {
        mamba_full_memory_ratio: ratio,
        ..StateOptions::default()
    }
}

fn available(bytes: u64) -> Hardware {
    Hardware {
        total_memory: 1 << 26,
        available_memory: bytes,
        ..machine()
    }
}

fn message(sizing: &Sizing<'_>, machine: &Hardware) -> String {
    size(sizing, machine, &[]).expect_err("refused").to_string()
}

proptest! {
    /// All that is charged fits, each request has its state, and neither states nor tokens could
    /// be more without taking from the other's share.
    #[test]
    fn states_and_tokens_share_the_memory(
        free in 0_u64..(1 << 26),
        requests in 1_usize..200,
        ratio in prop::option::of(0.01_f64..4.0),
        tokens in prop::option::of(16_usize..20_000),
        radix_cache: bool,
    ) {
        // Elsewhere a ratio is refused.
        let ratio = ratio.filter(|_| radix_cache && tokens.is_none());
        let sizing = Sizing {
            states: with_ratio(ratio),
            max_total_tokens: tokens,
            radix_cache,
            ..of_hybrid(requests)
        };
        if let Ok(sized) = size(&sizing, &available(free), &[]) {
            let kv = sized.value.0;
            let node = sizing.node(true);
            let cached = ((kv.num_pages - 1) * 16) as u64;
            let bytes = |states: usize, tokens: u64| {
                states as u64 * node.per_state + tokens * node.per_token
                    + node.weights + node.activations
            };
            prop_assert!(bytes(kv.states, cached) <= free);
            prop_assert!(kv.states >= requests);
            prop_assert!(radix_cache || kv.states == requests);
            let useful = (512 + 2_usize).next_multiple_of(16) * requests;
            let most = 2 * requests + useful / 256;
            prop_assert!(kv.states <= most);
            if tokens.is_none() {
                let full = cached as usize == useful || bytes(kv.states, cached + 16) > free;
                prop_assert!(full);
                let room = (free - node.weights - node.activations) as f64;
                let ratio = ratio.unwrap_or(0.9);
                let share = room * ratio / (1.0 + ratio);
                let of = |states: usize| states as f64 * node.per_state as f64;
                prop_assert!(kv.states == requests || of(kv.states) <= share * 1.0001);
                let enough = kv.states == most || !radix_cache;
                prop_assert!(enough || of(kv.states + 1) > share * 0.9999);
            }
        }
    }
}

/// Records are charged for the largest tier, whatever tier runs first. Memory that was planned
/// without what is verified ran out (vllm-project/vllm#57721).
#[test]
fn records_are_charged_for_the_largest_tier() {
    let mut sizing = of_hybrid(8);
    let plain = sizing.node(true).activations;
    sizing.engine.step.verified = 5;
    let records = StateLimits::of_steps(&sizing.engine.step, 0).node_records() as u64;
    assert_eq!(records, 8 * 5 * 2);
    let [_, record] = hybrid().state_and_record_bytes(1);
    assert!(record > 0);
    assert_eq!(
        sizing.node(true).activations,
        plain + (records - 16) * record
    );
}

#[test]
fn a_given_number_of_states_is_used_or_refused() {
    let machine = available(1 << 26);
    let with = |states: usize| Sizing {
        states: with_number(states),
        ..of_hybrid(8)
    };
    for states in [8, 9, 300] {
        let sized = size(&with(states), &machine, &[]).expect("fits");
        assert_eq!(sized.value.0.states, states);
    }
    let few = message(&with(7), &machine);
    assert!(
        few.contains("Give --max-mamba-cache-size 8 or more"),
        "{few}"
    );
    let many = message(&with(1 << 20), &machine);
    assert!(many.contains("recurrent states take"), "{many}");
    // The remedy helps.
    let words: Vec<_> = many.split(&[' ', ','][..]).collect();
    let at = words
        .iter()
        .rposition(|word| *word == "--max-mamba-cache-size");
    let fits: usize = words[at.unwrap() + 1].parse().unwrap();
    size(&with(fits), &machine, &[]).expect("fits");
    message(&with(fits + 1), &machine);
}

#[test]
fn options_of_states_are_refused_where_they_mean_nothing() {
    let machine = available(1 << 26);
    let sizing = Sizing {
        states: with_number(9),
        ..sizing()
    };
    let why = message(&sizing, &machine);
    assert!(why.contains("no recurrent layers"), "{why}");
    let sizing = Sizing {
        states: with_ratio(Some(0.5)),
        ..self::sizing()
    };
    let why = message(&sizing, &machine);
    assert!(why.contains("--mamba-full-memory-ratio"), "{why}");
    for ratio in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let sizing = Sizing {
            states: with_ratio(Some(ratio)),
            ..of_hybrid(2)
        };
        let why = message(&sizing, &machine);
        assert!(why.contains("must be above 0"), "{why}");
    }
}

/// Each of these decides the number of states without the ratio.
#[test]
fn a_ratio_is_refused_where_it_decides_nothing() {
    let machine = available(1 << 26);
    let ratio = with_ratio(Some(0.5));
    let with = || Sizing {
        states: ratio,
        ..of_hybrid(4)
    };
    size(&with(), &machine, &[]).expect("has an effect");
    let mut nodes = Sizing {
        nnodes: 2,
        ..with()
    };
    nodes.engine.tp_size = 2;
    let number = StateOptions {
        max_mamba_cache_size: Some(8),
        ..ratio
    };
    let cases = [
        (
            "--max-mamba-cache-size 8",
            Sizing {
                states: number,
                ..with()
            },
        ),
        (
            "--disable-radix-cache",
            Sizing {
                radix_cache: false,
                ..with()
            },
        ),
        ("--nnodes 2", nodes),
        (
            "--max-total-tokens 256",
            Sizing {
                max_total_tokens: Some(256),
                ..with()
            },
        ),
    ];
    for (other, sizing) in cases {
        let why = message(&sizing, &machine);
        assert!(why.contains("--mamba-full-memory-ratio 0.5"), "{why}");
        assert!(why.contains(other) && why.contains("Leave"), "{why}");
    }
}

/// Memory for fewer states than requests is none at all.
#[test]
fn too_little_memory_for_the_states_of_all_requests_names_the_remedy() {
    let sizing = of_hybrid(2000);
    let node = sizing.node(true);
    let short = node.weights + node.activations + 1999 * node.per_state;
    let why = message(&sizing, &available(short));
    assert!(why.contains("2000 recurrent states"), "{why}");
    assert!(why.contains("--max-running-requests"), "{why}");
}

/// Nodes with different memories have equally many states.
#[test]
fn with_several_nodes_the_number_of_states_does_not_depend_on_the_memory() {
    let mut sizing = Sizing {
        nnodes: 2,
        max_total_tokens: Some(256),
        ..of_hybrid(4)
    };
    sizing.engine.tp_size = 2;
    for free in [1 << 23, 1 << 25] {
        let kv = size(&sizing, &available(free), &[]).expect("fits").value.0;
        assert_eq!(kv.states, 8);
    }
    assert_eq!(count(&super::sizing(), &[], 9).expect("no states"), 0);
}

/// A node does not know what others have room for, so it derives no smaller number by itself.
#[test]
fn a_node_without_room_for_the_states_of_several_nodes_names_the_remedy() {
    let mut sizing = Sizing {
        nnodes: 2,
        max_total_tokens: Some(16),
        ..of_hybrid(400)
    };
    sizing.engine.tp_size = 2;
    let node = sizing.node(true);
    let base = node.weights + node.activations + 16 * node.per_token;
    let machine = available(base + 600 * node.per_state);
    let why = message(&sizing, &machine);
    assert!(why.contains("800 recurrent states"), "{why}");
    let remedy = "Give --max-mamba-cache-size 600 or less, the same on every node";
    assert!(why.contains(remedy), "{why}");
    for states in [400, 600] {
        sizing.states = with_number(states);
        let kv = size(&sizing, &machine, &[]).expect("fits").value.0;
        assert_eq!(kv.states, states);
    }
}
