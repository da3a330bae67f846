//! Experts that are split by number over ranks.

use super::*;

/// Experts in three places, one of which has a single one: each place adds what its own experts make
/// of a row, and zero if the row chose none of them. The last place has the shared expert too.
#[test]
fn experts_elsewhere_add_nothing() {
    for element in ELEMENTS {
        let mut gpu = backend(element);
        for (seed, (rows, count, active)) in (1..).zip([(5, 40, 3), (33, 9, 3), (40, 6, 2)]) {
            let _order = lockstep_fake_cuda::order(seed);
            let case = Case::new(element, (rows, count, active), &mut Noise(seed));
            let loaded = case.load(&mut gpu);
            let places = [0..3, 3..4, 4..count];
            let found = places.clone().map(|here| {
                let shared = if here.end == count { case.shared } else { 0 };
                case.run_here(&mut gpu, &loaded, 0..rows, here, shared)
            });
            for row in 0..rows {
                let chosen = case.chosen(row);
                for (here, found) in places.iter().zip(&found) {
                    let own = &found[row * OUT..(row + 1) * OUT];
                    let none = chosen.iter().all(|(expert, _)| !here.contains(expert));
                    if none && (here.end < count || case.shared == 0) {
                        assert!(own.iter().all(|value| value.to_bits() == 0));
                    }
                }
                let sum = |at: usize| found.iter().map(|part| part[row * OUT + at]).sum();
                let sums: Vec<f32> = (0..OUT).map(sum).collect();
                assert_close(&sums, &case.exact(row), tolerance(element));
            }
            let (row, here) = (rows - 1, 4..count);
            let alone = case.run_here(&mut gpu, &loaded, row..rows, here, case.shared);
            assert_eq!(bits(&alone), bits(&found[2][row * OUT..]), "{element:?}");
        }
    }
}
