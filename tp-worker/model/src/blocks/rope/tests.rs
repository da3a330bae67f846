use super::*;

/// Computes frequencies like transformers' `_compute_llama3_parameters`, line by line.
fn reference(theta: f64, dim: usize, [factor, low, high, old]: [f64; 4]) -> Vec<f64> {
    let inverse = (0..dim)
        .step_by(2)
        .map(|i| 1.0 / theta.powf(i as f64 / dim as f64));
    inverse
        .map(|inv_freq| {
            let wavelen = 2.0 * PI / inv_freq;
            let (low_wavelen, high_wavelen) = (old / low, old / high);
            let divided = if wavelen > low_wavelen {
                inv_freq / factor
            } else {
                inv_freq
            };
            let smooth = (old / wavelen - low) / (high - low);
            let smoothed = (1.0 - smooth) * divided / factor + smooth * divided;
            let medium = wavelen >= high_wavelen && wavelen <= low_wavelen;
            if medium { smoothed } else { divided }
        })
        .collect()
}

fn table(scaling: RopeScaling, theta: f64, dim: usize) -> RopeTable {
    let rope = RopeConfig {
        scaling,
        ..RopeConfig::plain(theta)
    };
    rope_table(&rope, dim, 9000)
}

fn check(table: &RopeTable, frequencies: &[f64]) {
    assert_eq!(table.half, frequencies.len());
    for position in [0usize, 1, 2, 63, 1000, 8999] {
        for (i, frequency) in frequencies.iter().enumerate() {
            let at = position * table.half + i;
            let angle = position as f64 * frequency;
            assert!((f64::from(table.cos[at]) - angle.cos()).abs() < 1e-7);
            assert!((f64::from(table.sin[at]) - angle.sin()).abs() < 1e-7);
        }
    }
}

#[test]
fn default_and_linear() {
    let plain: Vec<f64> = (0..32)
        .map(|i| 10000f64.powf(-(f64::from(i)) / 32.0))
        .collect();
    check(&table(RopeScaling::Default, 10000.0, 64), &plain);
    let linear: Vec<f64> = plain.iter().map(|f| f / 4.0).collect();
    check(
        &table(RopeScaling::Linear { factor: 4.0 }, 10000.0, 64),
        &linear,
    );
}

#[test]
fn llama3() {
    for numbers @ [factor, low, high, old] in [[8.0, 1.0, 4.0, 8192.0], [32.0, 1.0, 4.0, 64.0]] {
        let scaling = RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position: old as usize,
        };
        check(
            &table(scaling, 500_000.0, 128),
            &reference(500_000.0, 128, numbers),
        );
    }
}

/// A quarter of each head turns, by YaRN: the frequencies and the growth that transformers 5.24
/// gives Qwen3.5 with the parameters its model cards name for a million tokens
/// (`ROPE_INIT_FUNCTIONS["yarn"]`, float32).
#[test]
fn yarn_on_a_part_of_each_head() {
    const TRANSFORMERS: [f64; 32] = [
        1.000000e+00,
        6.042964e-01,
        3.651741e-01,
        2.206734e-01,
        1.333521e-01,
        8.058421e-02,
        4.869675e-02,
        2.942727e-02,
        1.778279e-02,
        1.074608e-02,
        6.493817e-03,
        3.924190e-03,
        2.371374e-03,
        1.433013e-03,
        8.659643e-04,
        4.742398e-04,
        2.569351e-04,
        1.373498e-04,
        7.217387e-05,
        3.707225e-05,
        1.844922e-05,
        8.759770e-06,
        3.849816e-06,
        2.326430e-06,
        1.405853e-06,
        8.495521e-07,
        5.133812e-07,
        3.102344e-07,
        1.874736e-07,
        1.132896e-07,
        6.846049e-08,
        4.137043e-08,
    ];
    const GROWTH: f64 = 1.138_629_436;
    let rope = RopeConfig {
        scaling: RopeScaling::Yarn {
            factor: 4.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            original_max_position: 262_144,
            attention_factor: GROWTH,
            truncate: true,
        },
        rotated: Some(64),
        ..RopeConfig::plain(1e7)
    };
    for (found, expected) in inverse_frequencies(&rope, 64).iter().zip(TRANSFORMERS) {
        assert!((found / expected - 1.0).abs() < 1e-5, "{found} {expected}");
    }
    let table = rope_table(&rope, 256, 3);
    assert_eq!(table.half, 128);
    let second = &table.cos[128..256];
    assert!((f64::from(second[0]) - GROWTH * 1f64.cos()).abs() < 1e-6);
    assert!(second[32..].iter().all(|cosine| *cosine == 1.0));
    assert!(table.sin[160..256].iter().all(|sine| *sine == 0.0));
}
