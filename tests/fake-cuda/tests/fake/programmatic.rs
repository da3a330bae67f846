//! Launches that begin before the launches before them are done.

use cudarc::driver::sys;

use crate::children;
use crate::device::{Answer, Buffer, Kernel, Module, Shape, Stream, begin, begin_with};
use crate::sanitizers::under;

const SOURCE: &str = include_str!("kernels/programmatic.cu");
/// Blocks of a step, and values of all of them.
const BLOCKS: u32 = 5;
const VALUES: usize = 64 * BLOCKS as usize;
const STEPS: usize = 6;
const SEEDS: std::ops::Range<u64> = 1..9;

const INVALID_VALUE: i32 = 1;
const LAUNCH_FAILED: i32 = 719;

/// The kernel `name` with a planted fault.
fn kernel(name: &str, fault: &str) -> Kernel {
    Module::new(SOURCE, &[&format!("FAULT={fault}")]).kernel(name)
}

/// A chain of steps over a ring of buffers.
struct Chain {
    ring: Vec<Buffer>,
    table: Buffer,
    /// True for launches that may begin early.
    programmatic: bool,
}

impl Chain {
    fn new(buffers: usize, programmatic: bool) -> Self {
        Self {
            ring: (0..buffers)
                .map(|_| Buffer::of(&[1.0f32; VALUES]))
                .collect(),
            table: Buffer::of(&[3.0f32; VALUES]),
            programmatic,
        }
    }

    /// Asks for all steps; the first one waits for what is there.
    fn launch(&self, stream: &Stream, step: &Kernel) {
        for number in 0..STEPS {
            let at = |number: usize| &self.ring[number % self.ring.len()];
            let values = [
                at(number).into(),
                at(number + 1).into(),
                (&self.table).into(),
            ];
            let shape = Shape::line(BLOCKS, 64);
            let early = self.programmatic && number > 0;
            let launched = step.launch_ex(stream, shape, &values, &[(6, early.into())]);
            launched.expect("launched");
        }
    }

    fn result(&self, stream: &Stream) -> Answer<Vec<f32>> {
        self.ring[STEPS % self.ring.len()].try_read(VALUES, stream)
    }
}

fn expected() -> Vec<f32> {
    vec![(0..STEPS).fold(1.0, |x, _| 2.0 * x + 3.0); VALUES]
}

/// Number of orders in which a chain gives what it should.
fn good(buffers: usize, step: &Kernel, programmatic: bool) -> usize {
    let run = |seed: &u64| {
        let _order = begin_with(*seed);
        let (stream, chain) = (Stream::new(), Chain::new(buffers, programmatic));
        chain.launch(&stream, step);
        chain.result(&stream) == Ok(expected())
    };
    SEEDS.filter(run).count()
}

#[test]
fn steps_that_wait_are_as_good_as_those_that_begin_late() {
    begin();
    for name in ["step", "one_waits"] {
        let step = kernel(name, "NONE");
        assert_eq!(good(2, &step, true), SEEDS.count(), "{name}");
        assert_eq!(good(3, &step, true), SEEDS.count(), "{name}");
    }
}

#[test]
fn recorded_steps_begin_early_too() {
    begin();
    let replay = |step: &Kernel| {
        let run = |seed: &u64| {
            let _order = begin_with(*seed);
            let (stream, chain) = (Stream::new(), Chain::new(3, true));
            stream.begin_capture().expect("begun");
            chain.launch(&stream, step);
            let graph = stream.end_capture().expect("recorded");
            stream.replay(&graph).expect("launched");
            chain.result(&stream) == Ok(expected())
        };
        SEEDS.filter(run).count()
    };
    assert_eq!(replay(&kernel("step", "NONE")), SEEDS.count());
    assert!(replay(&kernel("step", "READS")) < SEEDS.count());
}

#[test]
fn reading_too_early_shows() {
    begin();
    let step = kernel("step", "READS");
    assert!(good(2, &step, true) < SEEDS.count() / 2);
    assert_eq!(good(2, &step, false), SEEDS.count());
}

/// A step overwrites too early what the step before it reads, and what the one before that
/// reads: steps in between that wait for each other do not help.
#[test]
fn writing_too_early_shows() {
    begin();
    let step = kernel("step", "WRITES");
    for buffers in [2, 3] {
        assert!(good(buffers, &step, true) < SEEDS.count(), "{buffers}");
        assert_eq!(good(buffers, &step, false), SEEDS.count());
    }
}

/// Runs a chain with the fault of the detail, which may break the context.
pub(crate) fn run_chain() {
    let detail = children::detail();
    let (fault, seed) = detail.split_once(' ').expect("a fault and a seed");
    let _order = begin_with(seed.parse().expect("a seed"));
    let (stream, chain) = (Stream::new(), Chain::new(3, true));
    chain.launch(&stream, &kernel("step", fault));
    let good = chain.result(&stream).map(|found| found == expected());
    children::tell(&format!("good {good:?}"));
}

fn chain_in_child(fault: &str, seed: u64) -> String {
    let mut command = children::command("chain");
    command.env(children::DETAIL, format!("{fault} {seed}"));
    let (good, text) = children::finish(&mut command);
    assert!(good, "{text}");
    text
}

#[test]
fn copying_too_early_fails_the_launch() {
    let text = chain_in_child("COPIES", 1);
    let words = "began before griddepcontrol.wait, and its source";
    assert!(
        text.contains(&format!("good Err({LAUNCH_FAILED})")),
        "{text}"
    );
    assert!(
        text.contains("kernels.cu:13 ") && text.contains(words),
        "{text}"
    );
}

#[test]
fn a_block_that_does_not_wait_fails_its_launch() {
    let text = chain_in_child("LEAVES", 1);
    assert!(
        text.contains(&format!("good Err({LAUNCH_FAILED})")),
        "{text}"
    );
    let words = "step, block (1,0,0): it ends without griddepcontrol.wait";
    assert!(text.contains(words), "{text}");
}

#[test]
fn the_thread_sanitizer_sees_what_comes_too_early() {
    for (fault, line) in [("READS", 11), ("WRITES", 12), ("COPIES", 13)] {
        let Some((good, text)) = under("thread", "chain", &format!("{fault} 1")) else {
            return;
        };
        assert!(!good && text.contains("data race"), "{fault}: {text}");
        assert!(text.contains(&format!("kernels.cu:{line}")), "{text}");
    }
    if let Some((good, text)) = under("thread", "chain", "NONE 1") {
        assert!(good && text.contains("good Ok(true)"), "{text}");
    }
}

#[test]
fn what_cuda_does_not_promise_is_refused() {
    begin();
    let step = kernel("step", "NONE");
    let (stream, x) = (Stream::new(), Buffer::of(&[1.0f32; VALUES]));
    let values = [(&x).into(), (&x).into(), (&x).into()];
    let launch = |attribute, value| {
        let shape = Shape::line(BLOCKS, 64);
        step.launch_ex(&stream, shape, &values, &[(attribute, value)])
    };
    assert_eq!(launch(99, 1), Err(INVALID_VALUE));
    // A recorded edge of this kind leads from a kernel.
    stream.begin_capture().expect("begun");
    assert_eq!(launch(6, 1), Err(INVALID_VALUE));
    stream.fill(&x, 0, 4).expect("recorded");
    assert_eq!(launch(6, 1), Err(INVALID_VALUE));
    assert_eq!(launch(6, 0), Ok(()));
    assert_eq!(launch(6, 1), Ok(()));
    stream
        .end_capture()
        .expect("what was refused spoils nothing");
    let mut command = children::command("old device");
    let (good, text) = children::finish(command.env("FAKE_CUDA_CAPABILITY", "89"));
    assert!(good && text.contains("told Err(1)"), "{text}");
}

/// Launches on a device that has no such launches.
pub(crate) fn launch_on_old_device() {
    begin();
    let options = ["--gpu-architecture=sm_89", "-DFAULT=NONE"];
    let image = crate::device::compile(SOURCE, &options).expect("compiled");
    let step = Module::try_load(&image).expect("loaded").kernel("step");
    let (stream, x) = (Stream::new(), Buffer::of(&[1.0f32; VALUES]));
    let values = [(&x).into(), (&x).into(), (&x).into()];
    let told = step.launch_ex(&stream, Shape::line(BLOCKS, 64), &values, &[(6, 1)]);
    children::tell(&format!("told {told:?}"));
}

/// The attribute's number is cudarc's.
#[test]
fn attributes_have_their_numbers() {
    let programmatic =
        sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    assert_eq!(programmatic as i32, 6);
}
