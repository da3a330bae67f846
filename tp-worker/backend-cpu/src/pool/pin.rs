//! Threads on cores of their own.

#[cfg(target_os = "linux")]
pub(super) fn pin_current_thread(core: usize) -> std::io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if core >= CpuSet::MAX_CPU {
        return Err(std::io::Error::other(format!("there is no core {core}")));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn pin_current_thread(_core: usize) -> std::io::Result<()> {
    Err(std::io::Error::other(
        "pinning threads to cores works on Linux alone; leave it off",
    ))
}
