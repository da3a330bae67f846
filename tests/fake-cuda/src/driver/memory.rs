//! Memory: allocation, release, copies.

use std::ffi::{c_uchar, c_uint};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{Answer, Handle, Out, Refusal, export};
use crate::calls::note_brought;
use crate::run::{Goal, wait};
use crate::settings;
use crate::world::codes::{CAPTURE_UNSUPPORTED, ILLEGAL_ADDRESS};
use crate::world::graph::Work;
use crate::world::{enter, lock};

/// Refuses a call with bytes that are not a device's, when the call is made.
fn check(ranges: &[(usize, usize)]) -> Answer {
    let world = enter()?;
    let mut ranges = ranges.iter();
    ranges.try_for_each(|(at, bytes)| world.memory.check(*at, *bytes))
}

/// Refuses the same bytes when the work runs: the memory may be gone by then.
fn check_again(ranges: &[(usize, usize)]) -> Answer {
    let world = lock();
    let mut ranges = ranges.iter();
    let answer = ranges.try_for_each(|(at, bytes)| world.memory.check(*at, *bytes));
    answer.map_err(|refusal| Refusal::new(ILLEGAL_ADDRESS, refusal.reason))
}

/// Copies between allocations and host memory.
fn copy(to: usize, from: usize, bytes: usize) {
    // SAFETY: device memory was checked just now; the caller promises to leave host memory
    // alone until the copy is over.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) }
}

/// Refuses host memory that was pinned when a copy was asked for and has been freed since.
fn check_pinned(at: usize, bytes: usize) -> Answer {
    let pinned = lock().memory.is_pinned(at);
    let gone = || format!("{bytes} bytes of pinned memory that was given back are copied");
    pinned
        .then_some(())
        .ok_or_else(|| Refusal::new(ILLEGAL_ADDRESS, gone()))
}

/// A copy to the device that reads its source when it runs.
fn upload(to: usize, from: usize, bytes: usize, pinned: bool) -> Work {
    Arc::new(move || {
        check_again(&[(to, bytes)])?;
        if pinned {
            check_pinned(from, bytes)?;
        }
        copy(to, from, bytes);
        Ok(())
    })
}

/// A copy to the device that has read its source already.
fn upload_staged(to: usize, from: usize, bytes: usize) -> Work {
    // SAFETY: CUDA's callers pass as many bytes as they say.
    let staged = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) }.to_vec();
    Arc::new(move || {
        check_again(&[(to, bytes)])?;
        copy(to, staged.as_ptr() as usize, bytes);
        Ok(())
    })
}

/// A copy to the host.
fn download(to: usize, from: usize, bytes: usize, pinned: bool) -> Work {
    Arc::new(move || {
        check_again(&[(from, bytes)])?;
        if pinned {
            check_pinned(to, bytes)?;
        }
        copy(to, from, bytes);
        Ok(())
    })
}

fn copy_to_device(to: usize, from: usize, bytes: usize, stream: Handle) -> Answer {
    check(&[(to, bytes)])?;
    if bytes == 0 {
        return Ok(());
    }
    let mut world = enter()?;
    let captured = world.capture_of(world.stream(stream)?).is_some();
    // A caller that changes pinned memory too early changes the data that is copied.
    let pinned = world.memory.is_pinned(from);
    let work = if captured || pinned {
        upload(to, from, bytes, pinned)
    } else {
        upload_staged(to, from, bytes)
    };
    world.push(stream, "copy to the device", work)
}

fn copy_to_host(to: usize, from: usize, bytes: usize, stream: Handle) -> Answer {
    check(&[(from, bytes)])?;
    let mut world = enter()?;
    let at = world.stream(stream)?;
    let captured = world.capture_of(at).is_some();
    let (context, pinned) = (world.context, world.memory.is_pinned(to));
    let work = download(to, from, bytes, pinned);
    world.push(stream, "copy to the host", work)?;
    drop(world);
    if captured || pinned {
        return Ok(());
    }
    wait(context, Goal::Stream(at))
}

fn copy_inside(to: usize, from: usize, bytes: usize, stream: Handle) -> Answer {
    let ranges = [(to, bytes), (from, bytes)];
    check(&ranges)?;
    let work = move || {
        check_again(&ranges)?;
        copy(to, from, bytes);
        Ok(())
    };
    enter()?.push(stream, "copy on the device", Arc::new(work))
}

fn set(to: usize, value: &[u8], count: usize, stream: Handle) -> Answer {
    let bytes = value.len() * count;
    check(&[(to, bytes)])?;
    let value = value.to_vec();
    let work = move || {
        check_again(&[(to, bytes)])?;
        let filled = value.repeat(count);
        copy(to, filled.as_ptr() as usize, bytes);
        Ok(())
    };
    enter()?.push(stream, "set", Arc::new(work))
}

/// Waits for all work that the calling thread has asked for in its context, as freeing memory
/// does. A real device would wait for other threads' work, too, but CUDA does not promise that.
fn wait_for_mine() -> Answer {
    let mut world = enter()?;
    world.refuse_unsafe()?;
    let context = world.context;
    drop(world);
    wait(context, Goal::Mine(context))
}

/// Waits for the null stream, as calls without a stream do.
fn wait_for_null() -> Answer {
    let world = enter()?;
    let (context, null) = (world.context, world.stream(0)?);
    drop(world);
    wait(context, Goal::Stream(null))
}

/// Hangs for ever if `FAKE_CUDA_HANG` asks for it.
fn hang_perhaps() {
    const TAKEN: u64 = 10;
    static ASKED: AtomicU64 = AtomicU64::new(0);
    if ASKED.fetch_add(1, Ordering::Relaxed) < TAKEN {
        return;
    }
    if let Some(path) = settings::hang() {
        std::fs::write(&path, "").expect("whoever asks for it can see that it hangs");
        loop {
            std::thread::park();
        }
    }
}

export! {
    fn cuMemAlloc_v2(address: Out<usize>, bytes: usize) {
        hang_perhaps();
        let mut world = enter()?;
        world.refuse_unsafe()?;
        let device = world.device(world.context);
        address.set(world.memory.allocate(device, bytes)?);
        Ok(())
    }

    fn cuMemFree_v2(address: usize) {
        if address == 0 {
            return Ok(());
        }
        wait_for_mine()?;
        enter()?.memory.free(address)
    }

    fn cuMemAllocAsync(address: Out<usize>, bytes: usize, stream: Handle) {
        let mut world = enter()?;
        if world.capture_of(world.stream(stream)?).is_some() {
            let reason = "memory taken in a capture is its graph's alone: take it before";
            return Err(Refusal::new(CAPTURE_UNSUPPORTED, reason));
        }
        let device = world.device(world.context);
        address.set(world.memory.allocate(device, bytes)?);
        Ok(())
    }

    fn cuMemFreeAsync(address: usize, stream: Handle) {
        let mut world = enter()?;
        let work = move || lock().memory.free(address);
        world.push(stream, "free", Arc::new(work))
    }

    fn cuMemHostAlloc(address: Out<usize>, bytes: usize, _flags: c_uint) {
        let mut world = enter()?;
        world.refuse_unsafe()?;
        address.set(world.memory.pin(bytes)?);
        Ok(())
    }

    /// CUDA does not promise to wait for copies from or to this memory.
    fn cuMemFreeHost(address: usize) {
        let mut world = enter()?;
        world.refuse_unsafe()?;
        world.memory.unpin(address)
    }

    fn cuMemcpyHtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: Handle) {
        note_brought(bytes);
        copy_to_device(to, from, bytes, stream)
    }

    fn cuMemcpyDtoHAsync_v2(to: usize, from: usize, bytes: usize, stream: Handle) {
        copy_to_host(to, from, bytes, stream)
    }

    fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: Handle) {
        copy_inside(to, from, bytes, stream)
    }

    fn cuMemcpyHtoD_v2(to: usize, from: usize, bytes: usize) {
        enter()?.refuse_unsafe()?;
        copy_to_device(to, from, bytes, 0)?;
        wait_for_null()
    }

    fn cuMemcpyDtoH_v2(to: usize, from: usize, bytes: usize) {
        enter()?.refuse_unsafe()?;
        copy_to_host(to, from, bytes, 0)?;
        wait_for_null()
    }

    fn cuMemsetD8Async(to: usize, value: c_uchar, count: usize, stream: Handle) {
        set(to, &[value], count, stream)
    }

    fn cuMemsetD32Async(to: usize, value: c_uint, count: usize, stream: Handle) {
        set(to, &value.to_ne_bytes(), count, stream)
    }

    fn cuMemsetD8_v2(to: usize, value: c_uchar, count: usize) {
        enter()?.refuse_unsafe()?;
        set(to, &[value], count, 0)?;
        wait_for_null()
    }
}
