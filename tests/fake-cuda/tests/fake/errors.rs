//! Failures as on a device: some make one call fail, some break the context for good.

use cudarc::driver::result;

use crate::children;
use crate::device::{
    Answer, Buffer, Event, Module, Shape, Stream, Value, begin, begin_on, code, compile,
};

const INVALID_VALUE: i32 = 1;
const OUT_OF_MEMORY: i32 = 2;
const OUT_OF_RESOURCES: i32 = 701;

const SMALL: &str = include_str!("kernels/small.cu");
const FAULTS: &str = include_str!("kernels/faults.cu");

#[test]
fn launches_stay_within_limits() {
    begin();
    let module = Module::new(SMALL, &[]);
    let (add, narrow) = (module.kernel("add"), module.kernel("narrow"));
    let stream = Stream::new();
    let x = Buffer::of(&[0.0f32; 64]);
    let values: [Value; 3] = [(&x).into(), 1.0f32.into(), 0u32.into()];
    let try_shape = |grid, block, dynamic| {
        let shape = Shape {
            grid,
            block,
            dynamic,
        };
        add.try_launch(&stream, shape, &values)
    };
    for (grid, block) in [
        ([0, 1, 1], [1, 1, 1]),
        ([1, 1, 1], [0, 1, 1]),
        ([1, 65536, 1], [1, 1, 1]),
        ([1, 1, 65536], [1, 1, 1]),
        ([1, 1, 1], [1025, 1, 1]),
        ([1, 1, 1], [32, 33, 1]),
        ([1, 1, 1], [1, 1, 65]),
    ] {
        let told = try_shape(grid, block, 0);
        assert_eq!(told, Err(INVALID_VALUE), "{grid:?} {block:?}");
    }
    assert_eq!(try_shape([1, 1, 1], [1, 1, 1], 48 * 1024), Ok(()));
    assert_eq!(
        try_shape([1, 1, 1], [1, 1, 1], 48 * 1024 + 1),
        Err(INVALID_VALUE)
    );
    assert_eq!(add.allow(227 * 1024 + 1), Err(INVALID_VALUE));
    add.allow(227 * 1024).expect("what an H100 has");
    assert_eq!(try_shape([1, 1, 1], [32, 32, 1], 227 * 1024), Ok(()));
    let shape = Shape::line(1, 33);
    let told = narrow.try_launch(&stream, shape, &[(&x).into()]);
    assert_eq!(told, Err(OUT_OF_RESOURCES));
    stream
        .synchronize()
        .expect("what was refused has broken nothing");
}

#[test]
fn errors_say_why_they_came() {
    begin();
    // SAFETY: there is no such memory; the refusal is the test.
    let told = unsafe { result::memset_d8_async(64, 0, 7, std::ptr::null_mut()) };
    let told = format!("{told:?}");
    assert!(told.contains("CUDA_ERROR_INVALID_VALUE"), "{told}");
    assert!(
        told.contains("cuMemsetD8Async: 7 bytes are asked for at 0x40"),
        "{told}"
    );
}

#[test]
fn programs_that_do_not_compile_say_why() {
    let source = "extern \"C\" __global__ void f(float* x) {\n    x[0] = nothing;\n}\n";
    let log = compile(source, &[]).expect_err("there is no such name");
    assert!(
        log.contains("COMPILATION") && log.contains("kernels.cu:2"),
        "{log}"
    );
    let log = compile("", &["--unheard-of"]).expect_err("there is no such option");
    assert!(log.contains("INVALID_OPTION"), "{log}");
}

#[test]
fn images_are_for_an_architecture() {
    begin();
    let compile = |arch: &str| compile(SMALL, &[&format!("--gpu-architecture={arch}")]);
    let load = |arch: &str| Module::try_load(&compile(arch).expect("compiled"));
    assert_eq!(
        load("sm_100").map(|_| ()),
        Err(209),
        "no binary for this device"
    );
    let module = load("sm_90a").expect("the device's own");
    assert_eq!(module.try_kernel("nothing").map(|_| ()), Err(500));
    let code = compile("compute_80").expect("compiled");
    assert!(
        code.is_empty(),
        "no machine code for a virtual architecture"
    );
    let told = Module::try_load(b"\x7fELF and so on\0").map(|_| ());
    assert_eq!(told, Err(200));
}

/// Launches the kernel that the detail names, which fails, and tries other calls.
pub(crate) fn fault() {
    begin();
    let module = Module::new(FAULTS, &[]);
    let name = children::detail();
    let kernel = module.kernel(&name);
    let stream = Stream::new();
    let x = Buffer::of(&[3.0f32; 64]);
    let threads = if name == "not_in_mask" { 32 } else { 64 };
    kernel.launch(&stream, Shape::line(2, threads), &[(&x).into()]);
    let first = stream.synchronize();
    // No call works in this context from now on.
    let left: [Answer; 5] = [
        stream.synchronize(),
        stream.fill(&x, 0, 4),
        Buffer::try_new(4).map(|_| ()),
        code(result::ctx::synchronize()),
        code(result::event::create(
            cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT,
        ))
        .map(|_| ()),
    ];
    assert!(first.is_err(), "the kernel went well");
    assert_eq!(left, [first; 5]);
    children::tell(&format!("told {first:?}"));
    // The other device still works.
    begin_on(1);
    let stream = Stream::new();
    assert_eq!(Buffer::of(&[5u8; 4]).read::<u8>(4, &stream), [5; 4]);
}

#[test]
fn faults_of_kernels_are_named_and_break_their_context() {
    let faults: [(&str, i32, &[&str]); 10] = [
        (
            "outside",
            700,
            &["of an allocation of 256", "outside, block"],
        ),
        ("wild", 700, &["which is no allocation's"]),
        ("past_dynamic", 700, &["past_dynamic, block"]),
        (
            "different_barriers",
            719,
            &["kernels.cu:4", "kernels.cu:7", "different barriers"],
        ),
        (
            "nobody_comes",
            719,
            &["kernels.cu:13", "kernels.cu:14", "never come"],
        ),
        (
            "two_places",
            719,
            &["kernels.cu:21", "kernels.cu:23", "different places"],
        ),
        (
            "not_in_mask",
            719,
            &["kernels.cu:29", "not in its own mask 0000ffff"],
        ),
        ("trapped", 719, &["kernels.cu:42", "__trap()"]),
        ("deep", 719, &["its stack of 264256 bytes"]),
        ("misaligned", 716, &["kernels.cu:58"]),
    ];
    for (kernel, told, words) in faults {
        let mut command = children::command("fault");
        let (good, text) = children::finish(command.env(children::DETAIL, kernel));
        assert!(
            good && text.contains(&format!("told Err({told})")),
            "{kernel}: {text}"
        );
        for word in words {
            assert!(text.contains(word), "{kernel}, {word}: {text}");
        }
    }
}

/// Asks for devices on a machine without one.
pub(crate) fn look_for_devices() {
    assert_eq!(code(result::init()), Err(100));
    assert_eq!(code(result::device::get_count()), Ok(0));
}

/// Asks for the driver's version.
pub(crate) fn tell_driver() {
    let mut version = 0;
    // SAFETY: there is room for a number.
    let told = unsafe { cudarc::driver::sys::cuDriverGetVersion(&raw mut version) };
    code(told.result()).expect("told");
    assert_eq!(version, 11040);
}

/// Takes all memory of a small device.
pub(crate) fn fill_memory() {
    begin();
    let all = 1_000_000;
    assert_eq!(code(result::mem_get_info()), Ok((all, all)));
    assert_eq!(Buffer::try_new(all + 1).map(|_| ()), Err(OUT_OF_MEMORY));
    let most = Buffer::new(all - 1000);
    assert_eq!(code(result::mem_get_info()), Ok((1000, all)));
    assert_eq!(Buffer::try_new(1001).map(|_| ()), Err(OUT_OF_MEMORY));
    let rest = Buffer::new(1000);
    // The failure was not for good.
    Event::new().synchronize().expect("the context works");
    drop((most, rest));
    assert_eq!(code(result::mem_get_info()), Ok((all, all)));
}

#[test]
fn the_environment_decides_what_the_machine_has() {
    for (scenario, variable, value) in [
        ("no device", "FAKE_CUDA_DEVICES", "0"),
        ("old driver", "FAKE_CUDA_DRIVER", "11040"),
        ("small memory", "FAKE_CUDA_MEMORY", "1000000"),
    ] {
        let mut command = children::command(scenario);
        let (good, text) = children::finish(command.env(variable, value));
        assert!(good, "{scenario}: {text}");
    }
}
