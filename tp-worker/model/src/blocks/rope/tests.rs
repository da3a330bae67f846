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
