//! Recurrent layers on a GPU have the bits that they have on processors, whatever passes do with
//! states: prompts, chains and trees, replays, kept copies, and copies of whole states. Passes are
//! recorded, and repeated with other states and records in every step.

#[path = "cuda_recurrent/layer.rs"]
mod layer;
#[path = "cuda_recurrent/script.rs"]
mod script;
#[path = "cuda_recurrent/world.rs"]
mod world;

use lockstep_backend::{ConvolutionShape, DeltaShape, Recurrence};
use lockstep_backend_cpu::{CpuBackend, CpuOptions, CpuTensor};
use lockstep_backend_cuda::{CollectiveOptions, CudaBackend, CudaOptions};
use lockstep_collective::Single;
use lockstep_types::Dtype;
use script::script;
use world::World;

/// Heads whose matrices have tiles of 32 columns, of 16, and several of these; and long keys.
const DELTAS: [Recurrence; 4] = [
    Recurrence::Delta(DeltaShape::new([2, 4], [16, 32], 4)),
    Recurrence::Delta(DeltaShape::new([1, 3], [32, 16], 2)),
    Recurrence::Delta(DeltaShape::new([2, 2], [16, 48], 3)),
    Recurrence::Delta(DeltaShape::new([1, 2], [128, 64], 4)),
];
/// Convolutions with biases and without.
const MAMBAS: [Recurrence; 2] = [
    Recurrence::Mamba2(DeltaShape::new([2, 4], [32, 16], 4)),
    Recurrence::Mamba2(DeltaShape::new([1, 2], [128, 64], 3)),
];
/// Channels whose states are whole units of 16 bytes, and others with biases, of several blocks.
const CONVOLUTIONS: [Recurrence; 2] = [convolution(48, 3), convolution(261, 2)];

const fn convolution(channels: usize, taps: usize) -> Recurrence {
    Recurrence::Convolution(ConvolutionShape { channels, taps })
}

fn gpu(dtype: Dtype, graphs: &[usize]) -> CudaBackend {
    let options = CudaOptions {
        ordinal: 0,
        dtype,
        kernels: None,
        graphs: graphs.to_vec(),
        collectives: CollectiveOptions::default(),
    };
    let mut gpu = CudaBackend::new(&options, Box::new(Single::new())).unwrap();
    gpu.check_repetitions();
    gpu
}

fn cpu() -> CpuBackend {
    let options = CpuOptions {
        threads: 1,
        dtype: Dtype::Float32,
        pin: None,
        isa: None,
    };
    CpuBackend::new(options, Box::new(Single::new())).unwrap()
}

fn write(_: &mut CpuBackend, tensor: &mut CpuTensor, values: &[f32]) {
    tensor.values_mut().copy_from_slice(values);
}

/// Bits of values, rounded to the type of operands.
fn bits(values: &[f32], dtype: Dtype) -> Vec<u32> {
    let bits = values.iter().map(|value| value.to_bits());
    match dtype {
        Dtype::Float32 => bits.collect(),
        Dtype::Bfloat16 => bits
            .map(|bits| (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
            .collect(),
    }
}

/// Runs a script on both devices, and then asks for the output behind each state.
fn compare(rule: Recurrence, seed: u64, dtype: Dtype, graphs: &[usize]) {
    let steps = script(seed, 12);
    let _order = lockstep_fake_cuda::order(seed);
    let mut expected = World::new(cpu(), rule, write);
    let mut found = World::new(gpu(dtype, graphs), rule, CudaBackend::upload);
    for (number, step) in steps.iter().enumerate() {
        let [expected, found] = [expected.run(step), found.run(step)];
        assert_eq!(found.len(), expected.len());
        for (token, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(
                bits(found, dtype),
                bits(expected, dtype),
                "{rule:?}, seed {seed}, step {number}, token {token}: {step:?}"
            );
            assert!(expected.iter().all(|value| value.is_finite()));
        }
    }
}

#[test]
fn recurrent_layers_have_the_bits_of_processors() {
    for (seed, rule) in (1..).zip(DELTAS) {
        compare(rule, seed, Dtype::Float32, &[4, 16, 64]);
    }
    compare(DELTAS[0], 11, Dtype::Float32, &[]);
    compare(DELTAS[2], 12, Dtype::Bfloat16, &[64]);
}

#[test]
fn other_rules_have_the_bits_of_processors() {
    for (seed, [one, other]) in (21..).zip([MAMBAS, CONVOLUTIONS]) {
        compare(one, seed, Dtype::Float32, &[4, 16, 64]);
        compare(other, seed, Dtype::Bfloat16, &[64]);
    }
    compare(CONVOLUTIONS[1], 25, Dtype::Float32, &[]);
}

#[test]
#[should_panic(expected = "size them by all tiers")]
fn records_of_the_current_tier_are_too_few_on_gpus_too() {
    let mut world = World::new(gpu(Dtype::Float32, &[]), DELTAS[0], CudaBackend::upload);
    world.run(&script::Step::verifying(script::LIMITS.nodes + 1));
}

#[test]
#[should_panic(expected = "rows and copies have states of their own")]
fn a_copy_is_not_kept_in_a_live_state_on_gpus_either() {
    let mut world = World::new(gpu(Dtype::Float32, &[]), DELTAS[0], CudaBackend::upload);
    world.run(&script::Step::keeping(0));
}

#[test]
#[should_panic(expected = "a state that does not exist")]
fn a_state_beyond_the_last_is_refused_on_gpus_too() {
    let mut world = World::new(gpu(Dtype::Float32, &[]), DELTAS[0], CudaBackend::upload);
    world.run(&script::Step::keeping(script::LIMITS.states as u32));
}
