use super::*;

/// Known answers of the authors' Random123 distribution (`kat_vectors`).
#[test]
fn known_answers() {
    assert_eq!(
        philox4x32_10([0; 4], [0; 2]),
        [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
    );
    assert_eq!(
        philox4x32_10([u32::MAX; 4], [u32::MAX; 2]),
        [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
    );
    assert_eq!(
        philox4x32_10(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0]
        ),
        [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
    );
}

#[test]
fn every_part_of_the_counter_matters() {
    let base = uniform(7, 3, Stream::SAMPLE, 0);
    assert_eq!(base, uniform(7, 3, Stream::SAMPLE, 0));
    for other in [
        uniform(8, 3, Stream::SAMPLE, 0),
        uniform(7 + (1 << 40), 3, Stream::SAMPLE, 0),
        uniform(7, 4, Stream::SAMPLE, 0),
        uniform(7, 3 + (1 << 40), Stream::SAMPLE, 0),
        uniform(7, 3, Stream(1), 0),
        uniform(7, 3, Stream::SAMPLE, 1),
    ] {
        assert_ne!(base, other);
    }
}

/// χ² of 100,000 numbers in 100 bins, over positions and over seeds. There are 99 degrees of
/// freedom, with a 99.99 % point of 160.
#[test]
fn numbers_are_uniform() {
    let by_position: Vec<f64> = (0..100_000)
        .map(|p| uniform(1, p, Stream::SAMPLE, 0))
        .collect();
    let by_seed: Vec<f64> = (0..100_000)
        .map(|s| uniform(s, 1, Stream::SAMPLE, 0))
        .collect();
    for numbers in [by_position, by_seed] {
        let mut bins = [0u32; 100];
        for number in numbers {
            assert!((0.0..1.0).contains(&number));
            bins[(number * 100.0) as usize] += 1;
        }
        let chi2: f64 = bins
            .iter()
            .map(|n| (f64::from(*n) - 1000.0).powi(2) / 1000.0)
            .sum();
        assert!(chi2 < 160.0, "{chi2}");
    }
}
