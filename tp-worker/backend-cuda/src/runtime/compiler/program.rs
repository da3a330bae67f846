//! A source on its way through NVRTC.

use std::ffi::{CString, c_char};

use cudarc::nvrtc::result::NvrtcError;
use cudarc::nvrtc::{result, sys};

use super::failed;
use crate::error::CudaError;
use crate::kernels::Source;

/// A program of NVRTC.
pub(super) struct Program {
    raw: sys::nvrtcProgram,
}

impl Program {
    pub(super) fn new(source: &Source) -> Result<Self, CudaError> {
        let names = source.headers.iter().map(|(name, _)| text(name));
        let names: Vec<CString> = names.collect::<Result<_, _>>()?;
        let headers = source.headers.iter().map(|(_, header)| text(header));
        let headers: Vec<CString> = headers.collect::<Result<_, _>>()?;
        let pointers = |texts: &[CString]| -> Vec<*const c_char> {
            texts.iter().map(|text| text.as_ptr()).collect()
        };
        let (name_pointers, header_pointers) = (pointers(&names), pointers(&headers));
        let (code, name) = (text(source.text)?, text(source.name)?);
        let mut raw = std::ptr::null_mut();
        // SAFETY: all texts end in zero and outlive the call, which copies them;
        // there are as many names as headers.
        let made = unsafe {
            sys::nvrtcCreateProgram(
                &raw mut raw,
                code.as_ptr(),
                name.as_ptr(),
                headers.len() as i32,
                header_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        };
        made.result().map_err(failed("nvrtcCreateProgram"))?;
        Ok(Self { raw })
    }

    /// Compiles the program. Messages of the compiler are in the [log](Self::log).
    pub(super) fn compile(&self, options: &[String]) -> Result<(), NvrtcError> {
        // SAFETY: the program lives.
        unsafe { result::compile_program(self.raw, options) }
    }

    pub(super) fn log(&self) -> Result<String, CudaError> {
        // SAFETY: the program lives.
        let log = unsafe { result::get_program_log(self.raw) };
        let log = log.map_err(failed("nvrtcGetProgramLog"))?;
        let bytes: Vec<u8> = log.into_iter().map(|byte| byte as u8).collect();
        Ok(String::from_utf8_lossy(&bytes)
            .trim_end_matches('\0')
            .to_owned())
    }

    pub(super) fn machine_code(&self) -> Result<Vec<u8>, CudaError> {
        let mut bytes = 0;
        // SAFETY: the program lives, and one number is written.
        let size = unsafe { sys::nvrtcGetCUBINSize(self.raw, &raw mut bytes) };
        size.result().map_err(failed("nvrtcGetCUBINSize"))?;
        let mut code = vec![0u8; bytes];
        // SAFETY: as many bytes are written as were said.
        let copied = unsafe { sys::nvrtcGetCUBIN(self.raw, code.as_mut_ptr().cast()) };
        copied.result().map_err(failed("nvrtcGetCUBIN"))?;
        Ok(code)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was made once; nobody is left to be told of a failure.
        let _ = unsafe { result::destroy_program(self.raw) };
    }
}

fn text(text: &str) -> Result<CString, CudaError> {
    let zero = |_| CudaError::Unsupported("a source holds a zero byte: take it out".to_owned());
    CString::new(text).map_err(zero)
}
