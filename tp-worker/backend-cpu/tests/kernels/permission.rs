//! A process that may not use AMX tiles.

use std::os::unix::process::CommandExt;
use std::process::Command;

use lockstep_backend::{Memory as _, WeightFormat};
use lockstep_backend_cpu::{CpuBackend, CpuError, CpuOptions, Isa};
use lockstep_collective::Single;
use lockstep_types::Dtype;

const ARCH_PRCTL: u32 = 158;
const REQUEST_PERMISSION: u32 = 0x1023;
const CHILD: &str = "LOCKSTEP_TEST_WITHOUT_TILES";

/// Makes `arch_prctl(ARCH_REQ_XCOMP_PERM)` fail with EPERM in this process and in the
/// program that it executes.
fn refuse_tiles() -> std::io::Result<()> {
    let op = |code: u32, k: u32, jump: u8, jump_else: u8| libc::sock_filter {
        code: code as u16,
        jt: jump,
        jf: jump_else,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let end = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        op(load, 0, 0, 0), // the call's number
        op(equal, ARCH_PRCTL, 0, 3),
        op(load, 16, 0, 0), // its first argument's lower half
        op(equal, REQUEST_PERMISSION, 0, 1),
        op(end, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        op(end, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: both calls read their arguments alone, and restrict this process.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    };
    if done {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

fn build(isa: Option<Isa>) -> Result<CpuBackend, CpuError> {
    let options = CpuOptions {
        threads: 2,
        dtype: Dtype::Bfloat16,
        pin: None,
        isa,
    };
    CpuBackend::new(options, Box::new(Single::new()))
}

fn refusal() -> String {
    build(Some(Isa::Amx)).err().expect("no tiles").to_string()
}

/// Runs in the child: checks and reports the answer to a request for tiles.
fn without_tiles() -> String {
    // SAFETY: asks for what the filter refuses.
    let answer = unsafe { libc::syscall(i64::from(ARCH_PRCTL), i64::from(REQUEST_PERMISSION), 18) };
    let error = std::io::Error::last_os_error();
    assert_eq!((answer, error.raw_os_error()), (-1, Some(libc::EPERM)));
    assert!(!Isa::Amx.is_available());
    assert!(Isa::available().all(|isa| isa != Isa::Amx));
    let chosen = build(None).unwrap().describe(WeightFormat::Float);
    assert!(!chosen.contains("amx"), "{chosen}");
    let refusal = refusal();
    assert!(
        refusal.starts_with("this machine does not run amx kernels: its "),
        "{refusal}"
    );
    assert!(
        refusal.ends_with("; without a name the best that it runs are taken"),
        "{refusal}"
    );
    refusal
}

#[test]
fn a_process_without_permission_falls_back() {
    if std::env::var_os(CHILD).is_some() {
        return println!("{}", without_tiles());
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args([
            "--exact",
            "permission::a_process_without_permission_falls_back",
        ])
        .arg("--nocapture")
        .env(CHILD, "1");
    // SAFETY: the closure makes two system calls, between fork and exec.
    unsafe { child.pre_exec(refuse_tiles) };
    let child = child.output().unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    // Where this process has tiles, the child must say that the system refuses them.
    let reason = match Isa::Amx.lacks() {
        Some(reason) if !reason.contains("this process") => reason,
        _ => "its system does not let this process use AMX (error 1)".into(),
    };
    assert!(said.contains(&format!("amx kernels: {reason}")), "{said}");
}

#[test]
fn kernels_that_do_not_run_are_refused_with_the_reason() {
    for isa in Isa::ALL {
        match isa.lacks() {
            None => assert!(build(Some(isa)).is_ok()),
            Some(reason) => {
                let refusal = build(Some(isa)).err().expect("refused").to_string();
                assert!(
                    refusal.contains(isa.name()) && refusal.contains(&*reason),
                    "{refusal}"
                );
            }
        }
    }
}
