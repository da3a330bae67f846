//! Who may use the machine: most tests share it; those that kill processes or
//! load all cores have it alone, so that others' limits hold.

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::const_new(());

/// A turn together with others.
pub async fn shared() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}

/// A turn alone.
pub async fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().await
}
