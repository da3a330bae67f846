//! Names of error codes.

use std::ffi::{CStr, c_char};

use crate::abi::{Code, Out, Refusal, export, reason};
use crate::world::codes::INVALID_VALUE;

/// Names from `cuda.h` for the codes that the fake driver returns.
const NAMES: [(Code, &CStr); 28] = [
    (0, c"CUDA_SUCCESS"),
    (1, c"CUDA_ERROR_INVALID_VALUE"),
    (2, c"CUDA_ERROR_OUT_OF_MEMORY"),
    (46, c"CUDA_ERROR_DEVICE_UNAVAILABLE"),
    (100, c"CUDA_ERROR_NO_DEVICE"),
    (101, c"CUDA_ERROR_INVALID_DEVICE"),
    (200, c"CUDA_ERROR_INVALID_IMAGE"),
    (201, c"CUDA_ERROR_INVALID_CONTEXT"),
    (209, c"CUDA_ERROR_NO_BINARY_FOR_GPU"),
    (400, c"CUDA_ERROR_INVALID_HANDLE"),
    (401, c"CUDA_ERROR_ILLEGAL_STATE"),
    (500, c"CUDA_ERROR_NOT_FOUND"),
    (600, c"CUDA_ERROR_NOT_READY"),
    (700, c"CUDA_ERROR_ILLEGAL_ADDRESS"),
    (701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
    (716, c"CUDA_ERROR_MISALIGNED_ADDRESS"),
    (719, c"CUDA_ERROR_LAUNCH_FAILED"),
    (801, c"CUDA_ERROR_NOT_SUPPORTED"),
    (900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"),
    (901, c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"),
    (902, c"CUDA_ERROR_STREAM_CAPTURE_MERGE"),
    (903, c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"),
    (904, c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED"),
    (905, c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION"),
    (906, c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"),
    (907, c"CUDA_ERROR_CAPTURED_EVENT"),
    (908, c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"),
    (999, c"CUDA_ERROR_UNKNOWN"),
];

fn name(code: Code) -> Option<&'static CStr> {
    let known = NAMES.iter().find(|(known, _)| *known == code);
    known.map(|(_, name)| *name)
}

export! {
    fn cuGetErrorName(code: Code, text: Out<*const c_char>) {
        let name = name(code).ok_or_else(|| Refusal::quiet(INVALID_VALUE))?;
        text.set(name.as_ptr());
        Ok(())
    }

    /// Gives the reason of the last failure. CUDA describes the code instead.
    fn cuGetErrorString(code: Code, text: Out<*const c_char>) {
        let name = name(code).ok_or_else(|| Refusal::quiet(INVALID_VALUE))?;
        text.set(reason(code, name));
        Ok(())
    }
}
