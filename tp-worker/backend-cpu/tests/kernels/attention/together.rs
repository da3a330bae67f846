//! Tasks of several key heads, whole and with positions that others attend to.

use lockstep_backend_cpu::{AttentionTasks, CpuBackend, Isa};
use lockstep_types::{Dtype, KvCacheDtype};

use super::world::{Run, World, one_by_one, ragged, whole};
use crate::machine::{backend, bits};

/// Number of a request's last tokens that attend.
const LAST: usize = 8;

/// Compares key heads that threads of an instruction set take together with the same heads
/// in worlds of one key head each, attended by the instruction set `alone`.
pub fn heads_taken_together_do_not_show(
    isa: Isa,
    alone: Isa,
    dtype: Dtype,
    kv_dtype: KvCacheDtype,
) {
    let worlds = [
        World::new(32, 8, 64, &[2_600, 40], 61),
        World::new(24, 12, 96, &[600; 8], 62),
    ];
    for world in &worlds {
        let last = World::new(1, 1, 2, &vec![LAST; world.requests.len()], 0);
        let expected = heads_alone(&mut backend(alone, dtype, 1), kv_dtype, world, whole(&last));
        for (threads, page_size) in [(1, 16), (2, 1), (5, 1), (5, 16)] {
            let mut backend = backend(isa, dtype, threads);
            let mut most = AttentionTasks::default();
            let lists = [whole(&last), ragged(&last, 63), one_by_one(&last)];
            let run = run(page_size, kv_dtype);
            let all = run.last_outputs(&mut backend, world, LAST, &lists, |tasks| {
                most.heads = most.heads.max(tasks.heads);
                most.joined_heads = most.joined_heads.max(tasks.joined_heads);
            });
            for found in all {
                let same = bits(&found.concat()) == expected;
                assert!(
                    same,
                    "{isa} {dtype:?} {kv_dtype:?} page {page_size}, {threads} threads"
                );
            }
            assert!(most.heads > 1, "{threads} {most:?}");
            // Fewer threads have enough work without cuts.
            assert!(threads < 5 || most.joined_heads > 1, "{most:?}");
        }
    }
}

fn run(page_size: usize, kv_dtype: KvCacheDtype) -> Run {
    Run {
        page_size,
        kv_dtype,
        seed: 5,
    }
}

/// The bits of all outputs, computed for one key head after another.
fn heads_alone(
    backend: &mut CpuBackend,
    kv_dtype: KvCacheDtype,
    world: &World,
    steps: Vec<Vec<(usize, usize)>>,
) -> Vec<u32> {
    let lists = [steps];
    let mut of = |head| {
        let alone = world.of_key_head(head);
        let outputs = run(16, kv_dtype).last_outputs(backend, &alone, LAST, &lists, |tasks| {
            assert_eq!((tasks.heads, tasks.joined_heads), (1, 0));
        });
        outputs[0].concat()
    };
    let heads: Vec<Vec<f32>> = (0..world.shape.kv_heads).map(&mut of).collect();
    let width = world.shape.out_width() / heads.len();
    let tokens = 0..LAST * world.requests.len();
    let token = |token: usize| {
        heads
            .iter()
            .flat_map(move |out| &out[token * width..][..width])
    };
    tokens.flat_map(token).map(|x| x.to_bits()).collect()
}
