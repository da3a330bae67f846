use super::*;

fn key(seed: u64) -> DraftKey {
    DraftKey {
        seed,
        position: 3,
        node: 2,
    }
}

#[test]
fn maps_ids_and_leaves_the_others_nothing() {
    let mut sampler = DraftSampler::new(6);
    let logits = [0.0, 2f32.ln(), f32::NEG_INFINITY];
    sampler.set(&logits, Some(&[4, 1, 0]), 1.0).unwrap();
    for (p, expected) in sampler
        .law()
        .iter()
        .zip([0.0, 2.0 / 3.0, 0.0, 0.0, 1.0 / 3.0, 0.0])
    {
        assert!((p - expected).abs() < 1e-6, "{:?}", sampler.law());
    }
    sampler.set(&logits, None, 0.5).unwrap();
    assert!((sampler.law()[1] - 0.8).abs() < 1e-6);
    sampler.set(&[1.0, 3.0, 3.0], None, 0.0).unwrap();
    assert_eq!(sampler.law(), [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
}

/// χ² of 30,000 pairs drawn without replacement. There are 5 degrees of freedom, with a 99.9999
/// % point of 37.
#[test]
fn siblings_are_drawn_without_replacement() {
    let p = [0.5f64, 0.3, 0.2];
    let mut counts = [[0u32; 3]; 3];
    let mut sampler = DraftSampler::new(3);
    let draws = 30_000;
    for seed in 0..draws {
        sampler.set(&p.map(|p| p.ln() as f32), None, 1.0).unwrap();
        let first = sampler.draw(key(seed)).unwrap();
        sampler.exclude(first);
        let second = sampler.draw(DraftKey {
            node: 3,
            ..key(seed)
        });
        counts[first as usize][second.unwrap() as usize] += 1;
    }
    let mut chi2 = 0.0;
    for (a, row) in counts.iter().enumerate() {
        assert_eq!(row[a], 0);
        for b in (0..3).filter(|b| *b != a) {
            let expected = draws as f64 * p[a] * p[b] / (1.0 - p[a]);
            chi2 += (f64::from(row[b]) - expected).powi(2) / expected;
        }
    }
    assert!(chi2 < 37.0, "{chi2}: {counts:?}");
}

#[test]
fn nothing_is_drawn_from_nothing() {
    let mut sampler = DraftSampler::new(3);
    assert_eq!(sampler.draw(key(1)), None);
    sampler.set(&[0.0, 1.0], None, 1.0).unwrap();
    for expected in [true, true, false] {
        let token = sampler.draw(key(7));
        assert_eq!(token.is_some(), expected);
        sampler.exclude(token.unwrap_or(9));
    }
    assert_eq!(sampler.law(), [0.0; 3]);
}

#[test]
fn bad_rows_are_errors() {
    let mut sampler = DraftSampler::new(3);
    let wrong = |found, expected| Err(SamplingError::WrongWidth { found, expected });
    assert_eq!(sampler.set(&[0.0; 4], None, 1.0), wrong(4, 3));
    assert_eq!(sampler.set(&[0.0; 2], Some(&[1]), 1.0), wrong(2, 1));
    assert_eq!(sampler.set(&[0.0; 2], Some(&[1, 3]), 1.0), wrong(4, 3));
    assert_eq!(sampler.law(), [0.0; 3]);
    let nan = SamplingError::NotFinite { token: 1 };
    assert_eq!(sampler.set(&[0.0, f32::NAN], None, 1.0), Err(nan));
    assert_eq!(sampler.draw(key(0)), None);
}
