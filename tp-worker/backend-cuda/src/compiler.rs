//! Kernels from their sources, by NVRTC, and the folder where they are kept.

use std::ffi::{CString, c_char};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::nvrtc::result::NvrtcError;
use cudarc::nvrtc::{result, sys};

use crate::context::Context;
use crate::error::CudaError;
use crate::version::Version;

/// What is compiled in one piece.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// Its file, in errors.
    pub name: &'static str,
    /// CUDA C++.
    pub text: &'static str,
    /// What it may include: names and texts.
    pub headers: &'static [(&'static str, &'static str)],
}

/// Macros and their values.
pub(crate) type Defines = Vec<(&'static str, String)>;

/// Compiles for one device.
///
/// The folder holds machine code under names of all that it depends on: source,
/// macros, architecture and compiler. Files that were cut or changed are
/// noticed and made anew.
pub struct Compiler {
    architecture: String,
    version: Version,
    folder: Option<PathBuf>,
}

impl Compiler {
    /// Finds the compiler. `folder` is made where it is missing; without one
    /// everything is compiled at every start.
    ///
    /// # Errors
    /// [`CudaError::Missing`], [`CudaError::OldDriver`] where the driver is older
    /// than the compiler, [`CudaError::Cache`].
    pub fn new(context: &Context, folder: Option<&Path>) -> Result<Self, CudaError> {
        let version = library_version()?;
        if version.major > context.driver().major {
            return Err(CudaError::OldDriver {
                what: format!("its compiler libnvrtc {version}"),
                found: context.driver(),
                needed: Version {
                    minor: 0,
                    ..version
                },
            });
        }
        if let Some(folder) = folder {
            fs::create_dir_all(folder).map_err(unwritable(folder))?;
        }
        Ok(Self {
            architecture: context.architecture(),
            version,
            folder: folder.map(Path::to_owned),
        })
    }

    /// Machine code of `source` with macros `defines`, from the folder where it
    /// is there.
    ///
    /// # Errors
    /// [`CudaError::Compilation`] with what the compiler says;
    /// [`CudaError::Cache`], [`CudaError::Compiler`].
    pub fn compile(
        &self,
        source: &Source,
        defines: &[(&str, String)],
    ) -> Result<Vec<u8>, CudaError> {
        let options = options(&self.architecture, defines);
        let Some(folder) = &self.folder else {
            return self.compile_anew(source, &options);
        };
        let file = folder.join(self.file_name(source, &options));
        if let Some(code) = read(&file)? {
            return Ok(code);
        }
        let code = self.compile_anew(source, &options)?;
        write(&file, &code)?;
        Ok(code)
    }

    fn file_name(&self, source: &Source, options: &[String]) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut part = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        part(source.text);
        for (name, text) in source.headers {
            part(name);
            part(text);
        }
        options.iter().for_each(|option| part(option));
        let hash = hasher.finalize().to_hex();
        let (name, architecture, version) = (source.name, &self.architecture, self.version);
        format!("{name}-{architecture}-nvrtc{version}-{hash}.cubin")
    }

    fn compile_anew(&self, source: &Source, options: &[String]) -> Result<Vec<u8>, CudaError> {
        let program = Program::new(source)?;
        // SAFETY: the program lives.
        if unsafe { result::compile_program(program.raw, options) }.is_err() {
            return Err(CudaError::Compilation {
                name: source.name,
                architecture: self.architecture.clone(),
                log: program.log()?,
            });
        }
        program.machine_code()
    }
}

/// Finds the library.
fn library_version() -> Result<Version, CudaError> {
    // SAFETY: looks for a library and does nothing with it.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::Missing {
            library: "libnvrtc.so",
            remedy: "install CUDA's run-time compiler (nvidia-cuda-nvrtc) and name its folder in LD_LIBRARY_PATH",
        });
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two numbers.
    let found = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }.result();
    found.map_err(failed("nvrtcVersion"))?;
    Ok(Version {
        major: u32::try_from(major).unwrap_or_default(),
        minor: u32::try_from(minor).unwrap_or_default(),
    })
}

fn options(architecture: &str, defines: &[(&str, String)]) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={architecture}"),
        "--std=c++17".to_owned(),
        "-default-device".to_owned(),
    ];
    let defines = defines.iter();
    options.extend(defines.map(|(name, value)| format!("-D{name}={value}")));
    options
}

/// A program of NVRTC.
struct Program {
    raw: sys::nvrtcProgram,
}

impl Program {
    fn new(source: &Source) -> Result<Self, CudaError> {
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

    fn log(&self) -> Result<String, CudaError> {
        // SAFETY: the program lives.
        let log = unsafe { result::get_program_log(self.raw) };
        let log = log.map_err(failed("nvrtcGetProgramLog"))?;
        let bytes: Vec<u8> = log.into_iter().map(|byte| byte as u8).collect();
        Ok(String::from_utf8_lossy(&bytes)
            .trim_end_matches('\0')
            .to_owned())
    }

    fn machine_code(&self) -> Result<Vec<u8>, CudaError> {
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

/// For `map_err`: a call of the compiler that failed.
fn failed(call: &'static str) -> impl Fn(NvrtcError) -> CudaError {
    move |source| CudaError::Compiler { call, source }
}

fn text(text: &str) -> Result<CString, CudaError> {
    let zero = |_| CudaError::Unsupported("a source holds a zero byte: take it out".to_owned());
    CString::new(text).map_err(zero)
}

fn unwritable(path: &Path) -> impl Fn(std::io::Error) -> CudaError {
    let path = path.to_owned();
    move |source| CudaError::Cache {
        path: path.clone(),
        source,
    }
}

/// The code in `file` behind its hash; `None` where there is none, or another.
fn read(file: &Path) -> Result<Option<Vec<u8>>, CudaError> {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unwritable(file)(error)),
    };
    let whole = bytes.split_at_checked(blake3::OUT_LEN);
    let whole = whole.filter(|(hash, code)| blake3::hash(code).as_bytes() == hash);
    Ok(whole.map(|(_, code)| code.to_vec()))
}

/// Writes `code` behind its hash, whole or not at all.
fn write(file: &Path, code: &[u8]) -> Result<(), CudaError> {
    // Threads and processes may write the same at once.
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let own = file.with_extension(format!("{}.{number}", process::id()));
    let bytes = [blake3::hash(code).as_bytes().as_slice(), code].concat();
    fs::write(&own, bytes).map_err(unwritable(&own))?;
    fs::rename(&own, file).map_err(unwritable(file))
}

#[cfg(test)]
mod tests;
