//! Error codes of the driver (`CUresult`).

use crate::abi::Code;

pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const DEVICE_UNAVAILABLE: Code = 46;
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_IMAGE: Code = 200;
pub(crate) const INVALID_CONTEXT: Code = 201;
pub(crate) const NO_BINARY_FOR_GPU: Code = 209;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const ILLEGAL_STATE: Code = 401;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const ILLEGAL_ADDRESS: Code = 700;
pub(crate) const LAUNCH_OUT_OF_RESOURCES: Code = 701;
pub(crate) const MISALIGNED_ADDRESS: Code = 716;
pub(crate) const CAPTURE_UNSUPPORTED: Code = 900;
pub(crate) const CAPTURE_INVALIDATED: Code = 901;
pub(crate) const CAPTURE_MERGE: Code = 902;
pub(crate) const CAPTURE_UNMATCHED: Code = 903;
pub(crate) const CAPTURE_UNJOINED: Code = 904;
pub(crate) const CAPTURE_ISOLATION: Code = 905;
pub(crate) const CAPTURE_IMPLICIT: Code = 906;
pub(crate) const CAPTURED_EVENT: Code = 907;
pub(crate) const CAPTURE_WRONG_THREAD: Code = 908;
pub(crate) const UNKNOWN: Code = 999;
