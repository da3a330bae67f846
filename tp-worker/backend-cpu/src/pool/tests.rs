use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::*;

/// Pools that spin and pools that don't.
fn pools(threads: usize) -> [Pool; 2] {
    [false, true].map(|crowded| Pool::new(threads, None, crowded).unwrap())
}

fn zeros(count: usize) -> Vec<AtomicUsize> {
    (0..count).map(|_| AtomicUsize::new(0)).collect()
}

fn wait_until(done: impl Fn() -> bool) {
    while !done() {
        std::thread::yield_now();
    }
}

#[test]
fn every_share_of_every_job_runs_once() {
    for mut pool in pools(4) {
        let counts = zeros(4);
        for _ in 0..1_000 {
            pool.run(|share| {
                counts[share].fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(counts.iter().all(|n| n.load(Ordering::Relaxed) == 1_000));
    }
}

#[test]
fn every_chunk_runs_once_and_no_thread_twice_at_a_time() {
    for threads in [1, 2, 3, 5] {
        for mut pool in pools(threads) {
            for count in [0, 1, 2, 3, 4, 7, 64, 1_001] {
                let (counts, busy) = (zeros(count), zeros(threads));
                pool.for_chunks(count, |thread, chunk| {
                    assert_eq!(busy[thread].fetch_add(1, Ordering::SeqCst), 0);
                    counts[chunk].fetch_add(1, Ordering::Relaxed);
                    busy[thread].fetch_sub(1, Ordering::SeqCst);
                });
                assert!(counts.iter().all(|n| n.load(Ordering::Relaxed) == 1));
            }
        }
    }
}

#[test]
fn chunks_of_a_share_are_begun_in_order() {
    for mut pool in pools(3) {
        let order = std::sync::Mutex::new(Vec::new());
        pool.for_chunks(500, |thread, chunk| {
            order.lock().unwrap().push((thread, chunk));
        });
        let order = order.into_inner().unwrap();
        for thread in 0..3 {
            for owner in 0..3 {
                let own = share(500, 3, owner);
                let mine = |entry: &&(usize, usize)| entry.0 == thread && own.contains(&entry.1);
                let chunks: Vec<_> = order.iter().filter(mine).collect();
                assert!(chunks.is_sorted());
            }
        }
    }
}

#[test]
fn a_held_up_thread_is_helped() {
    for mut pool in pools(2) {
        for held_up in [0, 5, 9] {
            let done = AtomicUsize::new(0);
            pool.for_chunks(10, |_, chunk| {
                if chunk == held_up {
                    wait_until(|| done.load(Ordering::SeqCst) == 9);
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
            assert_eq!(done.into_inner(), 10);
        }
    }
}

#[test]
fn who_has_not_joined_is_not_waited_for() {
    let shared = Shared::new(2, false);
    let idle = |_: usize| {};
    let nothing: Job = &raw const idle;
    for _ in 0..3 {
        // SAFETY: no thread can join, and the closure outlives the loop.
        unsafe { shared.open(nothing) };
        assert!(shared.finish().is_none());
    }
}

#[test]
fn sleepers_on_both_sides_wake_up() {
    for mut pool in pools(2) {
        for _ in 0..20 {
            let shared = pool.shared.clone();
            wait_until(|| shared.asleep[0].load(Ordering::SeqCst));
            let joined = AtomicBool::new(false);
            // The caller ends its chunk when the worker has joined. The worker ends its own
            // chunk when the caller sleeps.
            pool.run(|_| {
                if std::thread::current().name() == Some("kernel-1") {
                    joined.store(true, Ordering::SeqCst);
                    wait_until(|| shared.caller_sleeps());
                } else {
                    wait_until(|| joined.load(Ordering::SeqCst));
                }
            });
            assert!(joined.into_inner() && !shared.caller_sleeps());
        }
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_survives() {
    for mut pool in pools(3) {
        for bad in 0..3 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|share| assert!(share != bad, "kernel {bad} failed"));
            }));
            let message = *caught.unwrap_err().downcast::<String>().unwrap();
            assert!(message.contains(&format!("kernel {bad} failed")));
        }
        let done = AtomicUsize::new(0);
        pool.run(|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 3);
    }
}

/// Overflows the stack. Its work there keeps the compiler from leaving it out.
#[cfg(target_arch = "x86_64")]
fn overflow(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 128]);
    if depth == u64::MAX {
        return 0;
    }
    overflow(depth + 1) + frame[depth as usize % 128]
}

/// Overflows the stack of a pool's thread in a process of its own, after the thread has used
/// tiles if the machine has any.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[test]
fn a_stack_overflow_is_reported_by_name() {
    const CHILD: &str = "LOCKSTEP_TEST_OVERFLOW";
    if std::env::var_os(CHILD).is_some() {
        let joined = AtomicBool::new(false);
        return Pool::new(2, None, true).unwrap().run(|_| {
            if std::thread::current().name() != Some("kernel-1") {
                return wait_until(|| joined.load(Ordering::SeqCst));
            }
            if crate::amx::permission().is_ok() {
                // SAFETY: the process may use tiles.
                unsafe {
                    crate::amx::shape(32);
                    std::arch::asm!("tilezero tmm0", out("tmm0") _, options(nostack));
                }
                crate::amx::release();
            } else {
                crate::amx::grow_signal_stack();
            }
            overflow(0);
            joined.store(true, Ordering::SeqCst);
        });
    }
    if let Err(reason) = crate::amx::permission() {
        eprintln!("without tiles: this machine doesn't run them, {reason}");
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "pool::tests::a_stack_overflow_is_reported_by_name",
        ])
        .arg("--nocapture")
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(!child.status.success());
    assert!(
        said.contains("thread 'kernel-1'") && said.contains("has overflowed its stack"),
        "{}: {said}",
        child.status
    );
}
