//! Compilation of kernels by NVRTC, and the folder that keeps their machine code.

mod code_cache;
mod program;

use std::path::Path;

use cudarc::nvrtc::result::NvrtcError;
use cudarc::nvrtc::sys;

use crate::error::CudaError;
use crate::kernels::Source;
use crate::runtime::Gpu;
use crate::version::Version;
use code_cache::CodeCache;
pub use code_cache::programs_not_kept;
use program::Program;

/// Macros and their values.
pub(crate) type Defines = Vec<(&'static str, String)>;

/// Compiler for one device's architecture.
///
/// The folder holds machine code under names derived from all that the code depends on: source,
/// macros, architecture and compiler. Files that were cut or changed are noticed and made anew.
/// A folder that can't be used is a warning.
pub struct Compiler {
    architecture: String,
    version: Version,
    kept: Option<CodeCache>,
}

impl Compiler {
    /// Finds the compiler. `folder` is made if missing. Without a folder everything is compiled
    /// at every start.
    ///
    /// # Errors
    /// [`CudaError::Missing`]; [`CudaError::OldDriver`] where the driver is older than the
    /// compiler; [`CudaError::OldCompiler`] where the compiler does not know the GPU.
    pub fn new(gpu: &Gpu, folder: Option<&Path>) -> Result<Self, CudaError> {
        let version = library_version()?;
        gpu.check_library("libnvrtc", version)?;
        Ok(Self {
            architecture: architecture(gpu, version)?,
            version,
            kept: folder.map(CodeCache::open),
        })
    }

    /// Compiles a kernel that does nothing, to find an incomplete installation.
    ///
    /// # Errors
    /// [`CudaError::Compilation`], [`CudaError::Compiler`].
    pub fn probe(&self) -> Result<(), CudaError> {
        const NOTHING: Source = Source {
            name: "nothing.cu",
            text: "extern \"C\" __global__ void nothing(unsigned) {}",
            headers: &[],
        };
        self.compile_anew(&self.architecture, &NOTHING, &[])
            .map(drop)
    }

    /// Architecture that kernels are compiled for, such as "sm_90".
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Machine code of `source` with macros `defines`, read from the folder if it is there.
    ///
    /// # Errors
    /// [`CudaError::Compilation`] with the compiler's log; [`CudaError::Compiler`].
    pub fn compile(
        &self,
        source: &Source,
        defines: &[(&str, String)],
    ) -> Result<Vec<u8>, CudaError> {
        self.compile_for(&self.architecture, source, defines)
    }

    /// Machine code of `source` as [`Self::compile`] makes it, for `architecture`: another name
    /// of the GPU's own, such as "sm_90a" with instructions that no later GPU has.
    ///
    /// # Errors
    /// The errors of [`Self::compile`].
    pub(crate) fn compile_for(
        &self,
        architecture: &str,
        source: &Source,
        defines: &[(&str, String)],
    ) -> Result<Vec<u8>, CudaError> {
        let Some(kept) = &self.kept else {
            return self.compile_anew(architecture, source, defines);
        };
        let name = self.file_name(architecture, source, &options(architecture, defines));
        if let Some(code) = kept.read(&name) {
            return Ok(code);
        }
        let code = self.compile_anew(architecture, source, defines)?;
        kept.write(&name, &code);
        Ok(code)
    }

    fn file_name(&self, architecture: &str, source: &Source, options: &[String]) -> String {
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
        let (name, version) = (source.name, self.version);
        format!("{name}-{architecture}-nvrtc{version}-{hash}.cubin")
    }

    fn compile_anew(
        &self,
        architecture: &str,
        source: &Source,
        defines: &[(&str, String)],
    ) -> Result<Vec<u8>, CudaError> {
        let program = Program::new(source)?;
        if program.compile(&options(architecture, defines)).is_err() {
            return Err(CudaError::Compilation {
                name: source.name,
                architecture: architecture.to_owned(),
                log: program.log()?,
            });
        }
        program.machine_code()
    }
}

/// Finds the library and returns its version.
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

/// The GPU's own architecture if the compiler knows it. Otherwise the newest known one before
/// it of the same generation, since the GPU runs that machine code.
fn architecture(gpu: &Gpu, version: Version) -> Result<String, CudaError> {
    let Version { major, minor } = gpu.capability();
    let own = 10 * major + minor;
    let known = known_architectures()?.into_iter();
    let newest = known
        .filter(|known| known / 10 == major && *known <= own)
        .max();
    let newest = newest.map(|number| format!("sm_{number}"));
    newest.ok_or_else(|| CudaError::OldCompiler {
        version,
        gpu: gpu.describe(),
    })
}

/// Architectures that the compiler knows, as numbers: 90 for "sm_90".
fn known_architectures() -> Result<Vec<u32>, CudaError> {
    let mut count = 0;
    // SAFETY: writes one number.
    let counted = unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) };
    counted
        .result()
        .map_err(failed("nvrtcGetNumSupportedArchs"))?;
    let mut known = vec![0i32; usize::try_from(count).unwrap_or_default()];
    // SAFETY: as many numbers are written as were said.
    let listed = unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) };
    listed.result().map_err(failed("nvrtcGetSupportedArchs"))?;
    let known = known.into_iter();
    Ok(known
        .filter_map(|number| u32::try_from(number).ok())
        .collect())
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

/// For `map_err`: the error of a failed call of the compiler.
fn failed(call: &'static str) -> impl Fn(NvrtcError) -> CudaError {
    move |source| CudaError::Compiler { call, source }
}

#[cfg(test)]
mod tests;
