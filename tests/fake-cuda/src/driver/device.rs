//! Devices and their contexts.

use std::ffi::{c_char, c_int, c_uint};

use crate::abi::{Answer, Handle, Out, Refusal, export};
use crate::run::{Goal, wait};
use crate::settings;
use crate::world::codes::{
    DEVICE_UNAVAILABLE, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE,
};
use crate::world::{current, enter, lock, set_current};

/// Attributes that don't depend on settings, by number (`CUdevice_attribute`). They are an
/// H100's, except that there are few multiprocessors.
const ATTRIBUTES: [(c_int, c_int); 15] = [
    (1, 1024),        // threads per block
    (2, 1024),        // of which in x
    (3, 1024),        // in y
    (4, 64),          // in z
    (5, 0x7fff_ffff), // blocks in x
    (6, 65535),       // in y
    (7, 65535),       // in z
    (8, 48 << 10),    // bytes of shared memory per block
    (10, 32),         // lanes of a warp
    (12, 65536),      // registers per block
    (16, 4),          // multiprocessors
    (38, 50 << 20),   // bytes of second-level cache
    (39, 2048),       // threads per multiprocessor
    (81, 228 << 10),  // bytes of shared memory per multiprocessor
    (115, 1),         // memory pools
];
/// Attributes with the major and the minor number of the compute capability.
const CAPABILITY: [c_int; 2] = [75, 76];
/// Attribute with the bytes of shared memory per block that a kernel may ask for.
const BLOCK_MEMORY: c_int = 97;

fn known(device: c_int) -> Answer {
    let known = u64::try_from(device).is_ok_and(|device| device < settings::devices());
    let missing = || Refusal::new(INVALID_DEVICE, format!("there is no device {device}"));
    known.then_some(()).ok_or_else(missing)
}

fn attribute(number: c_int) -> Answer<c_int> {
    let capability = settings::capability() as c_int;
    if number == CAPABILITY[0] {
        return Ok(capability / 10);
    }
    if number == CAPABILITY[1] {
        return Ok(capability % 10);
    }
    if number == BLOCK_MEMORY {
        return Ok(settings::block_memory() as c_int);
    }
    let known = ATTRIBUTES.iter().find(|(known, _)| *known == number);
    let missing = || {
        let reason = format!("the fake driver does not know the attribute {number}");
        Refusal::new(INVALID_VALUE, reason)
    };
    known.map(|(_, value)| *value).ok_or_else(missing)
}

export! {
    fn cuInit(_flags: c_uint) {
        match settings::devices() {
            0 => Err(Refusal::quiet(NO_DEVICE)),
            _ => Ok(()),
        }
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.set(settings::number("FAKE_CUDA_DRIVER", 13000) as c_int);
        Ok(())
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        count.set(settings::devices() as c_int);
        Ok(())
    }

    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        known(ordinal)?;
        device.set(ordinal);
        Ok(())
    }

    fn cuDeviceGetName(name: Out<c_char>, bytes: c_int, device: c_int) {
        known(device)?;
        let text = b"Fake CUDA device\0";
        let short = || Refusal::new(INVALID_VALUE, "no room for the name");
        let fits = usize::try_from(bytes).is_ok_and(|bytes| bytes >= text.len());
        fits.then_some(()).ok_or_else(short)?;
        name.set_all(&text.map(|byte| byte as c_char));
        Ok(())
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, number: c_int, device: c_int) {
        known(device)?;
        value.set(attribute(number)?);
        Ok(())
    }

    /// No other device of the machine has the same number.
    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) {
        known(device)?;
        let mut bytes = *b"fake device 0000";
        bytes[12..].copy_from_slice(&device.to_be_bytes());
        uuid.set(bytes);
        Ok(())
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        known(device)?;
        bytes.set(settings::memory() + settings::hidden());
        Ok(())
    }

    fn cuMemGetInfo_v2(free: Out<usize>, all: Out<usize>) {
        let world = enter()?;
        let (left, whole) = world.memory.info(world.device(world.context));
        free.set(left + settings::hidden());
        all.set(whole + settings::hidden());
        Ok(())
    }

    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) {
        known(device)?;
        if std::env::var("FAKE_CUDA_EXCLUSIVE").is_ok() {
            return Err(Refusal::new(DEVICE_UNAVAILABLE, "another program has the device"));
        }
        context.set(lock().retain(device));
        Ok(())
    }

    /// A device's context stays, and so do its memory and its failure.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        known(device)
    }

    fn cuCtxGetCurrent(context: Out<Handle>) {
        context.set(current());
        Ok(())
    }

    fn cuCtxSetCurrent(context: Handle) {
        let exists = context == 0 || lock().contexts.contains_key(&context);
        let missing = || Refusal::new(INVALID_CONTEXT, format!("{context:#x} is no context"));
        exists.then(|| set_current(context)).ok_or_else(missing)
    }

    fn cuCtxSynchronize() {
        let mut world = enter()?;
        let context = world.context;
        world.refuse_wait_for_all(context)?;
        drop(world);
        wait(context, Goal::Context(context))
    }
}
