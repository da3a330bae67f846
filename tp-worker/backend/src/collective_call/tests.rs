use super::*;

/// Returns exchanges of each kind, with all values of the other fields.
fn all() -> Vec<CollectiveCall> {
    let kinds = [
        ExchangeKind::AllReduce,
        ExchangeKind::ReduceScatter,
        ExchangeKind::AllGather,
        ExchangeKind::Broadcast,
        ExchangeKind::Gather,
    ];
    let mut all = Vec::new();
    for kind in kinds {
        for axis in [Axis::World, Axis::Attention, Axis::Alone] {
            for dtype in [Dtype::Float32, Dtype::Bfloat16] {
                for (elements, root) in [(1, 0), (1 << 40 | 3, 0), (7, 5)] {
                    all.push(CollectiveCall {
                        kind,
                        axis,
                        elements,
                        dtype,
                        root,
                    });
                }
            }
        }
    }
    all
}

#[test]
fn collectives_survive_their_words() {
    let all = all();
    for (at, one) in all.iter().enumerate() {
        assert_eq!(CollectiveCall::from_words(&one.to_words()), Some(*one));
        let words = one.to_words();
        assert!(all[..at].iter().all(|other| other.to_words() != words));
    }
    for words in [
        [0; 4],
        [u32::MAX; 4],
        [1, 0, 0, 0],
        [6 | 1 << 8 | 1 << 16, 0, 1, 0],
    ] {
        assert_eq!(CollectiveCall::from_words(&words), None);
    }
}

#[test]
fn parts_that_are_even_go_at_once() {
    let kinds = |lens: &[usize]| {
        let all = CollectiveCall::gather(Axis::World, lens.iter().copied(), Dtype::Bfloat16);
        all.map(|one| (one.kind, one.elements, one.root))
            .collect::<Vec<_>>()
    };
    use ExchangeKind::{AllGather, AllReduce, Broadcast, ReduceScatter};
    assert_eq!(kinds(&[6, 6, 6]), [(AllGather, 6, 0)]);
    assert_eq!(kinds(&[0, 0]), []);
    assert_eq!(kinds(&[6, 0, 4]), [(Broadcast, 6, 0), (Broadcast, 4, 2)]);
    let scatter = |rows: &[Range<usize>], len| {
        let one = CollectiveCall::scatter(Axis::World, len, rows, 2)?;
        Some((one.kind, one.elements))
    };
    assert_eq!(scatter(&[0..3, 3..6], 12), Some((ReduceScatter, 6)));
    // A last part that ends too early; parts of unequal sizes; shared rows; no rows.
    assert_eq!(scatter(&[0..3, 3..6], 14), Some((AllReduce, 14)));
    assert_eq!(scatter(&[0..4, 4..6], 12), Some((AllReduce, 12)));
    assert_eq!(scatter(&[0..3, 0..3], 12), Some((AllReduce, 12)));
    assert_eq!(scatter(&[0..0, 0..0], 0), None);
}

#[test]
fn the_first_difference_is_found() {
    let key = PassKey {
        requests: 1,
        tokens: 1,
        max_q_len: 1,
    };
    let sum = |elements| CollectiveCall::sum(Axis::World, elements).unwrap();
    let plan = |lens: &[usize]| PassPlan {
        key,
        exchanges: lens.iter().map(|len| sum(*len)).collect(),
    };
    let found = |a: &[usize], b: &[usize]| {
        let (at, pair) = plan(a).differs(&plan(b))?;
        Some((at, pair.map(|one| one.map(|one| one.elements))))
    };
    assert_eq!(found(&[1, 2, 3], &[1, 2, 3]), None);
    assert_eq!(found(&[1, 2, 3], &[1, 4, 3]), Some((1, [Some(2), Some(4)])));
    assert_eq!(found(&[1, 2], &[1, 2, 3]), Some((2, [None, Some(3)])));
    assert_eq!(found(&[1], &[]), Some((0, [Some(1), None])));
}
