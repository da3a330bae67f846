//! Turns in using the machine. Most tests share the machine. Tests that kill processes
//! or load all cores have it alone, so the time limits of other tests hold.

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::const_new(());

/// Waits for a turn shared with other tests.
pub async fn shared() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}

/// Waits for a turn alone.
pub async fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().await
}
