//! Free ports.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// First port of the range. It is below the range from which systems take ports for
/// outgoing connections, so a free port stays free until the server uses it.
const FIRST: u16 = 18_000;
const COUNT: u16 = 14_000;

/// Returns the next port of this process that is free on 127.0.0.1.
///
/// # Panics
/// Panics if there is none.
pub fn free() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test processes that run at the same time begin at different ports.
    let begin = (std::process::id() % u32::from(COUNT / 100)) as u16 * 100;
    (0..COUNT)
        .map(|_| {
            let at = NEXT.fetch_add(1, Ordering::Relaxed);
            FIRST + begin.wrapping_add(at) % COUNT
        })
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("a free port")
}
