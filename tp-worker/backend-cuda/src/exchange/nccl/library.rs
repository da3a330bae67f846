//! The functions of NCCL that are used, found when the program runs.
//!
//! NCCL, "NCCL API": communicator creation and management, collective communication functions,
//! group calls. Numbers of results and types are from `nccl.h`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::sys::CUstream;

use super::charge::channels;
use crate::error::CudaError;

/// File names of the library: the one that packages install, and the one of development
/// packages.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// Oldest version that serves: in communicators that don't block, none of its calls waits for
/// the device.
const OLDEST: c_int = 22_200;
/// Environment variable that makes all communicators block.
const BLOCKING: &str = "NCCL_COMM_BLOCKING";

/// A communicator's handle in the library.
pub(super) type Raw = *mut c_void;
/// `ncclResult_t`
pub(super) type Code = c_int;

pub(super) const DONE: Code = 0;
/// `ncclInProgress`
pub(super) const UNDER_WAY: Code = 7;

/// `ncclDataType_t`
pub(super) const F32: c_int = 7;
pub(super) const BF16: c_int = 9;
/// `ncclRedOp_t`
const SUM: c_int = 0;

/// `ncclUniqueId`: rank 0 makes it, and all ranks of a communicator pass it to NCCL.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct UniqueId(pub [u32; 32]);

/// Version of [`Config`].
const CONFIG: c_uint = 21_700;
/// `NCCL_CONFIG_UNDEF_INT`: leaves the choice to the library.
const OPEN: c_int = c_int::MIN;

/// `ncclConfig_t` of version 2.17, which later versions accept too.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cluster: c_int,
    least_channels: c_int,
    most_channels: c_int,
    network: *const c_char,
    shares: c_int,
}

type Reduce = unsafe extern "C" fn(u64, u64, usize, c_int, c_int, Raw, CUstream) -> Code;
type Gather = unsafe extern "C" fn(u64, u64, usize, c_int, Raw, CUstream) -> Code;
type Pass = unsafe extern "C" fn(u64, usize, c_int, c_int, Raw, CUstream) -> Code;
type OfRaw = unsafe extern "C" fn(Raw) -> Code;

/// The loaded library.
pub struct Library {
    version: c_int,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> Code,
    init: unsafe extern "C" fn(*mut Raw, c_int, UniqueId, c_int, *mut Config) -> Code,
    get_async_error: unsafe extern "C" fn(Raw, *mut Code) -> Code,
    abort: OfRaw,
    finalize: OfRaw,
    destroy: OfRaw,
    group_start: unsafe extern "C" fn() -> Code,
    group_end: unsafe extern "C" fn() -> Code,
    all_reduce: Reduce,
    reduce_scatter: Reduce,
    all_gather: Gather,
    broadcast: Reduce,
    send: Pass,
    receive: Pass,
    error_string: unsafe extern "C" fn(Code) -> *const c_char,
    /// Never unloaded, since the library has threads of its own.
    _library: ManuallyDrop<libloading::Library>,
}

impl Library {
    /// Finds the library at `path`, or in the search path of libraries.
    ///
    /// # Errors
    /// [`CudaError::Missing`]; [`CudaError::Unsupported`] if the library lacks a function, is
    /// too old or is told to block.
    pub fn find(path: Option<&Path>) -> Result<Arc<Self>, CudaError> {
        let library = match path {
            Some(path) => open(path).map_err(|error| {
                CudaError::Unsupported(format!(
                    "{} is no NCCL that can be loaded: {error}; give --nccl-path the path of libnccl.so.2, or leave it out",
                    path.display()
                ))
            }),
            None => NAMES
                .iter()
                .find_map(|name| open(Path::new(name)).ok())
                .ok_or(CudaError::Missing {
                    library: "libnccl.so.2",
                    remedy: "install NCCL (nvidia-nccl) where libraries are looked for, or name it with --nccl-path",
                }),
        }?;
        let found = Self::of(library).map_err(|error| {
            CudaError::Unsupported(format!(
                "the NCCL that was found lacks a function: {error}; install another one, or give --collective-backend host"
            ))
        })?;
        let asked = std::env::var(BLOCKING).ok();
        match unsuited(found.version, asked.as_deref()) {
            None => Ok(Arc::new(found)),
            Some(why) => Err(CudaError::Unsupported(why)),
        }
    }

    fn of(library: libloading::Library) -> Result<Self, libloading::Error> {
        /// The function `name` of the library.
        ///
        /// # Safety
        /// `nccl.h` declares it with the type `F`.
        unsafe fn named<F: Copy>(
            library: &libloading::Library,
            name: &CStr,
        ) -> Result<F, libloading::Error> {
            // SAFETY: the caller knows the type.
            let found = unsafe { library.get::<F>(name) }?;
            Ok(*found)
        }
        // SAFETY: the types are those of `nccl.h`, where pointers to device memory are
        // addresses.
        unsafe {
            let get_version: unsafe extern "C" fn(*mut c_int) -> Code =
                named(&library, c"ncclGetVersion")?;
            let mut version = 0;
            get_version(&raw mut version);
            Ok(Self {
                version,
                get_unique_id: named(&library, c"ncclGetUniqueId")?,
                init: named(&library, c"ncclCommInitRankConfig")?,
                get_async_error: named(&library, c"ncclCommGetAsyncError")?,
                abort: named(&library, c"ncclCommAbort")?,
                finalize: named(&library, c"ncclCommFinalize")?,
                destroy: named(&library, c"ncclCommDestroy")?,
                group_start: named(&library, c"ncclGroupStart")?,
                group_end: named(&library, c"ncclGroupEnd")?,
                all_reduce: named(&library, c"ncclAllReduce")?,
                reduce_scatter: named(&library, c"ncclReduceScatter")?,
                all_gather: named(&library, c"ncclAllGather")?,
                broadcast: named(&library, c"ncclBroadcast")?,
                send: named(&library, c"ncclSend")?,
                receive: named(&library, c"ncclRecv")?,
                error_string: named(&library, c"ncclGetErrorString")?,
                _library: ManuallyDrop::new(library),
            })
        }
    }

    /// Version as text: "2.28.3".
    pub fn version(&self) -> String {
        text(self.version)
    }

    /// Version as a number, which ranks compare.
    pub(super) fn number(&self) -> u32 {
        self.version.cast_unsigned()
    }

    /// Returns an error for a code other than [`DONE`] and [`UNDER_WAY`].
    ///
    /// # Errors
    /// [`CudaError::Nccl`].
    pub(super) fn check(&self, call: &'static str, code: Code) -> Result<(), CudaError> {
        if matches!(code, DONE | UNDER_WAY) {
            return Ok(());
        }
        // SAFETY: the library's texts are constants.
        let reason = unsafe { CStr::from_ptr((self.error_string)(code)) };
        let reason = reason.to_string_lossy().into_owned();
        Err(CudaError::Nccl { call, reason })
    }

    pub(super) fn unique_id(&self) -> Result<UniqueId, CudaError> {
        let mut id = UniqueId([0; 32]);
        // SAFETY: there is room for it.
        let code = unsafe { (self.get_unique_id)(&raw mut id) };
        self.check("ncclGetUniqueId", code)?;
        Ok(id)
    }

    /// Begins to join a communicator as rank `rank` of `size`, and returns at once.
    pub(super) fn begin(&self, id: UniqueId, rank: usize, size: usize) -> Result<Raw, CudaError> {
        let mut config = Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: CONFIG,
            blocking: 0,
            cluster: OPEN,
            least_channels: OPEN,
            most_channels: channels() as c_int,
            network: std::ptr::null(),
            shares: OPEN,
        };
        let (rank, size) = (rank as c_int, size as c_int);
        let mut made: Raw = std::ptr::null_mut();
        // SAFETY: there is room for the communicator, and the library reads as much of the
        // configuration as its version says.
        let code = unsafe { (self.init)(&raw mut made, size, id, rank, &raw mut config) };
        self.check("ncclCommInitRankConfig", code)?;
        Ok(made)
    }

    /// State of the last operation: [`DONE`], [`UNDER_WAY`] or an error.
    ///
    /// # Safety
    /// The communicator exists, here and in the functions below.
    pub(super) unsafe fn state(&self, raw: Raw) -> Code {
        let mut state = DONE;
        // SAFETY: there is room for it.
        match unsafe { (self.get_async_error)(raw, &raw mut state) } {
            DONE => state,
            code => code,
        }
    }

    pub(super) unsafe fn abort(&self, raw: Raw) {
        // SAFETY: the caller answers for this.
        unsafe { (self.abort)(raw) };
    }

    pub(super) unsafe fn finalize(&self, raw: Raw) -> Code {
        // SAFETY: the caller answers for this.
        unsafe { (self.finalize)(raw) }
    }

    pub(super) unsafe fn destroy(&self, raw: Raw) {
        // SAFETY: the caller answers for this.
        unsafe { (self.destroy)(raw) };
    }

    /// Makes all operations that `work` asks for one group.
    pub(super) fn grouped(&self, mut work: impl FnMut() -> Code) -> Code {
        // SAFETY: no argument.
        let begun = unsafe { (self.group_start)() };
        let asked = match begun {
            DONE => work(),
            code => return code,
        };
        // SAFETY: no argument; a group that was begun ends.
        let ended = unsafe { (self.group_end)() };
        if matches!(asked, DONE | UNDER_WAY) {
            ended
        } else {
            asked
        }
    }

    /// # Safety
    /// The addresses are memory of the communicator's device, which lives until the stream has
    /// passed the operation. They have `count` elements, in a gather's result `count` for each
    /// rank. This holds for the functions below, too.
    pub(super) unsafe fn sum(&self, raw: Raw, at: u64, count: usize, stream: CUstream) -> Code {
        // SAFETY: the caller answers for this.
        unsafe { (self.all_reduce)(at, at, count, F32, SUM, raw, stream) }
    }

    pub(super) unsafe fn scatter(
        &self,
        raw: Raw,
        (from, to): (u64, u64),
        count: usize,
        stream: CUstream,
    ) -> Code {
        // SAFETY: the caller answers for this.
        unsafe { (self.reduce_scatter)(from, to, count, F32, SUM, raw, stream) }
    }

    pub(super) unsafe fn gather(
        &self,
        raw: Raw,
        (from, to): (u64, u64),
        (count, kind): (usize, c_int),
        stream: CUstream,
    ) -> Code {
        // SAFETY: the caller answers for this.
        unsafe { (self.all_gather)(from, to, count, kind, raw, stream) }
    }

    pub(super) unsafe fn broadcast(
        &self,
        raw: Raw,
        (from, to): (u64, u64),
        (count, kind): (usize, c_int),
        root: usize,
        stream: CUstream,
    ) -> Code {
        // SAFETY: the caller answers for this.
        unsafe { (self.broadcast)(from, to, count, kind, root as c_int, raw, stream) }
    }

    /// Sends `count` floats to rank `peer`, which receives them; both in a group.
    pub(super) unsafe fn send(
        &self,
        raw: Raw,
        from: u64,
        count: usize,
        peer: usize,
        stream: CUstream,
    ) -> Code {
        // SAFETY: the caller answers for this.
        unsafe { (self.send)(from, count, F32, peer as c_int, raw, stream) }
    }

    /// Receives `count` floats that rank `peer` sends.
    pub(super) unsafe fn receive(
        &self,
        raw: Raw,
        to: u64,
        count: usize,
        peer: usize,
        stream: CUstream,
    ) -> Code {
        // SAFETY: the caller answers for this.
        unsafe { (self.receive)(to, count, F32, peer as c_int, raw, stream) }
    }
}

/// The reason why a library of this version does not serve, if any. `blocking` is the value of
/// [`BLOCKING`].
fn unsuited(version: c_int, blocking: Option<&str>) -> Option<String> {
    if version < OLDEST {
        return Some(format!(
            "the NCCL that was found is {}, and {} is needed: install a newer one, or give --collective-backend host",
            text(version),
            text(OLDEST)
        ));
    }
    let blocks = blocking.is_some_and(|value| value.trim().parse() == Ok(1));
    blocks.then(|| {
        format!("{BLOCKING}=1 makes calls of NCCL wait for peers that may be gone: unset it, or give --collective-backend host")
    })
}

fn open(path: &Path) -> Result<libloading::Library, libloading::Error> {
    // SAFETY: what NCCL does when it is loaded is NVIDIA's.
    unsafe { libloading::Library::new(path) }
}

fn text(version: c_int) -> String {
    format!(
        "{}.{}.{}",
        version / 10_000,
        version / 100 % 100,
        version % 100
    )
}

#[cfg(test)]
mod tests {
    use super::unsuited;

    #[test]
    fn what_waits_for_peers_is_refused() {
        for blocking in [None, Some("0"), Some("")] {
            assert_eq!(unsuited(22_200, blocking), None, "{blocking:?}");
        }
        let old = unsuited(22_105, None).unwrap_or_default();
        assert!(old.contains("2.21.5, and 2.22.0 is needed"), "{old}");
        let blocks = unsuited(22_803, Some("1")).unwrap_or_default();
        assert!(blocks.contains("unset it"), "{blocks}");
    }
}
