//! libnvrtc: CUDA C++ by the machine's C++ compiler and the shim.

mod compiler;
mod edit;
mod kernels;
mod options;
mod shim;

use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::abi::{Answer, Code, Handle, In, Out, Refusal, Text, export};
use crate::arch::Image;
use crate::settings;
use crate::world::lock;
use options::Options;

/// Error codes of NVRTC (`nvrtcResult`).
const INVALID_INPUT: Code = 3;
const INVALID_PROGRAM: Code = 4;
const INVALID_OPTION: Code = 5;
const COMPILATION: Code = 6;
const BUILTINS: Code = 7;

/// A program to compile, and its result.
#[derive(Clone, Default)]
struct Program {
    name: String,
    source: String,
    /// Headers, by the names under which they are included.
    headers: Vec<(String, String)>,
    log: String,
    image: Option<Image>,
}

static PROGRAMS: LazyLock<Mutex<HashMap<Handle, Program>>> = LazyLock::new(Mutex::default);

fn programs() -> MutexGuard<'static, HashMap<Handle, Program>> {
    PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn program(handle: Handle) -> Answer<Program> {
    programs().get(&handle).cloned().ok_or_else(no_program)
}

fn no_program() -> Refusal {
    Refusal::new(INVALID_PROGRAM, "no such program")
}

/// The image that a program was compiled to, with a zero behind it, as PTX has.
///
/// # Errors
/// The program was not compiled, or to another kind of image.
fn image(handle: Handle, wanted: impl Fn(&Image) -> bool) -> Answer<Vec<c_char>> {
    let image = program(handle)?.image.filter(wanted);
    let missing = || Refusal::new(INVALID_PROGRAM, "the program was not compiled to this");
    let bytes = image.ok_or_else(missing)?.encode();
    Ok(c_bytes(&bytes))
}

fn c_bytes(bytes: &[u8]) -> Vec<c_char> {
    let bytes = bytes.iter().map(|byte| *byte as c_char);
    bytes.chain([0]).collect()
}

fn texts(list: In<*const c_char>, count: usize) -> impl Iterator<Item = String> {
    let texts = list.all(count).into_iter();
    texts.map(|text| Text::new(text).text())
}

fn is_machine_code(image: &Image) -> bool {
    image.arch.real
}

/// Refuses names outside of their folder, since names of headers become files.
fn is_plain(name: &str) -> bool {
    let outside = name.starts_with('/') || name.split('/').any(|part| part == "..");
    !name.is_empty() && !outside
}

export! {
    fn nvrtcVersion(major: Out<c_int>, minor: Out<c_int>) {
        major.set(13);
        minor.set(0);
        Ok(())
    }

    fn nvrtcGetNumSupportedArchs(count: Out<c_int>) {
        count.set(settings::architectures().len() as c_int);
        Ok(())
    }

    fn nvrtcGetSupportedArchs(all: Out<c_int>) {
        all.set_all(&settings::architectures());
        Ok(())
    }

    fn nvrtcCreateProgram(
        made: Out<Handle>,
        source: Text,
        name: Text,
        count: c_int,
        headers: In<*const c_char>,
        names: In<*const c_char>,
    ) {
        let count = usize::try_from(count).unwrap_or(0);
        let headers = texts(names, count).zip(texts(headers, count));
        let headers: Vec<(String, String)> = headers.collect();
        if let Some((bad, _)) = headers.iter().find(|(name, _)| !is_plain(name)) {
            return Err(Refusal::new(INVALID_INPUT, format!("a header of the name `{bad}`")));
        }
        let program = Program {
            name: if name.is_null() { "default_program".to_owned() } else { name.text() },
            source: source.text(),
            headers,
            ..Program::default()
        };
        let handle = lock().handle();
        programs().insert(handle, program);
        made.set(handle);
        Ok(())
    }

    fn nvrtcDestroyProgram(program: In<Handle>) {
        let known = program.get(0).and_then(|handle| programs().remove(&handle));
        known.map(|_| ()).ok_or_else(no_program)
    }

    fn nvrtcCompileProgram(handle: Handle, count: c_int, options: In<*const c_char>) {
        let mut of = program(handle)?;
        let count = usize::try_from(count).unwrap_or(0);
        let options = Options::parse(texts(options, count));
        let options = options.map_err(|reason| Refusal::new(INVALID_OPTION, reason))?;
        let known = settings::architectures().contains(&(options.arch.number as c_int));
        if !known {
            of.log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n".to_owned();
            programs().insert(handle, of);
            return Err(Refusal::new(INVALID_OPTION, "an architecture that is not known"));
        }
        if std::env::var("FAKE_NVRTC_BUILTINS").is_ok() {
            of.log = "nvrtc: error: failed to open libnvrtc-builtins.so.13.0.\n".to_owned();
            programs().insert(handle, of);
            return Err(Refusal::quiet(BUILTINS));
        }
        let compiled = compiler::compile(&of.name, &of.source, &of.headers, &options);
        let (log, object) = match compiled {
            Ok((object, log)) => (log, Some(object)),
            Err(log) => (log, None),
        };
        of.log = log;
        of.image = object.map(|object| Image { arch: options.arch, object });
        let works = of.image.is_some();
        programs().insert(handle, of);
        // The log has the reason.
        works.then_some(()).ok_or_else(|| Refusal::quiet(COMPILATION))
    }

    fn nvrtcGetProgramLogSize(handle: Handle, bytes: Out<usize>) {
        bytes.set(program(handle)?.log.len() + 1);
        Ok(())
    }

    fn nvrtcGetProgramLog(handle: Handle, log: Out<c_char>) {
        log.set_all(&c_bytes(program(handle)?.log.as_bytes()));
        Ok(())
    }

    /// Gives zero if the architecture was a virtual one.
    fn nvrtcGetCUBINSize(handle: Handle, bytes: Out<usize>) {
        bytes.set(image(handle, is_machine_code).map_or(0, |image| image.len()));
        Ok(())
    }

    fn nvrtcGetCUBIN(handle: Handle, bytes: Out<c_char>) {
        bytes.set_all(&image(handle, is_machine_code)?);
        Ok(())
    }

    fn nvrtcGetPTXSize(handle: Handle, bytes: Out<usize>) {
        bytes.set(image(handle, |_| true)?.len());
        Ok(())
    }

    fn nvrtcGetPTX(handle: Handle, bytes: Out<c_char>) {
        bytes.set_all(&image(handle, |_| true)?);
        Ok(())
    }
}

/// Name of a result code.
#[unsafe(no_mangle)]
extern "C" fn nvrtcGetErrorString(code: Code) -> *const c_char {
    let name = match code {
        0 => c"NVRTC_SUCCESS",
        INVALID_INPUT => c"NVRTC_ERROR_INVALID_INPUT",
        INVALID_PROGRAM => c"NVRTC_ERROR_INVALID_PROGRAM",
        INVALID_OPTION => c"NVRTC_ERROR_INVALID_OPTION",
        COMPILATION => c"NVRTC_ERROR_COMPILATION",
        BUILTINS => c"NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        _ => c"NVRTC_ERROR_INTERNAL_ERROR",
    };
    name.as_ptr()
}
