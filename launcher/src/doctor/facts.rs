//! Facts about the machine, looked up once.

use lockstep_config::{Hardware, ServeArgs};
use lockstep_process::clock;
use lockstep_types::Algorithms;
use rustix::process::{Resource, getrlimit};

use super::requirements::Requirements;
use crate::run_dir::RunDir;

/// File with the setting of transparent huge pages.
pub(super) const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// All facts that findings are made of.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) asked: Requirements,
    pub(super) hardware: Hardware,
    /// Cores of the machine.
    pub(super) online: usize,
    /// Cores that the control group allows, if it limits them.
    pub(super) quota: Option<f64>,
    /// The mode of huge pages; `None` if the system does not offer them.
    pub(super) huge_pages: Option<String>,
    /// Bytes free in `/dev/shm`.
    pub(super) shared_memory: Result<u64, String>,
    /// Limits of open descriptors: the present limit, and the one that it may be raised to.
    /// `None` is any number.
    pub(super) open_files: (Option<u64>, Option<u64>),
    /// Most bytes that may be locked, and most bytes of address space; `None` is any number.
    pub(super) locked_memory: Option<u64>,
    pub(super) address_space: Option<u64>,
    /// The source of the system's clock.
    pub(super) clock_source: Option<String>,
    /// True if the clock is synchronized with others; `None` if the system doesn't say.
    pub(super) clock_in_step: Option<bool>,
    /// The finding for each port that is asked for, with a remedy if the port can't be had.
    pub(super) ports: Vec<(String, Option<String>)>,
    /// Path of the run directory, or the reason why it can't be made.
    pub(super) run_dir: Result<String, String>,
}

impl Facts {
    /// Collects all facts.
    pub(super) fn collect(args: &ServeArgs, algorithms: &Algorithms) -> Self {
        let asked = Requirements::of(args, algorithms);
        let hardware = Hardware::detect();
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let processors = read("/proc/cpuinfo").unwrap_or_default();
        let processors = processors.lines();
        let online = processors
            .filter(|line| line.starts_with("processor"))
            .count();
        let open = getrlimit(Resource::Nofile);
        let locked = getrlimit(Resource::Memlock);
        let space = getrlimit(Resource::As);
        let public = asked.ports.all().iter().map(|(option, port)| {
            match asked.ports.try_out(option, *port) {
                Ok(()) => {
                    let host = asked.ports.host();
                    (format!("{host}:{port} is free ({option})"), None)
                }
                Err(refusal) => (refusal.found(), Some(refusal.remedy().to_owned())),
            }
        });
        let nodes = asked.nodes.iter().map(|(host, port)| of_nodes(host, *port));
        Self {
            ports: public.chain(nodes).collect(),
            asked,
            online: online.max(hardware.cores.len()),
            hardware,
            quota: Hardware::cpu_quota(),
            huge_pages: read(HUGE_PAGES)
                .and_then(|text| Some(text.split(['[', ']']).nth(1)?.to_owned())),
            shared_memory: rustix::fs::statvfs("/dev/shm")
                .map(|found| found.f_bavail.saturating_mul(found.f_frsize))
                .map_err(|error| error.to_string()),
            open_files: (open.current, open.maximum),
            locked_memory: locked.maximum,
            address_space: space.current,
            clock_source: read(CLOCK_SOURCE).map(|text| text.trim().to_owned()),
            clock_in_step: clock::in_step(),
            run_dir: run_dir(args),
        }
    }
}

/// Tries the port where other nodes register: listens as a server would, and closes it
/// again.
fn of_nodes(host: &str, port: u16) -> (String, Option<String>) {
    let address = format!("{host}:{port}");
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match std::net::TcpListener::bind((host, port)) {
        Ok(_) => (format!("{address} is free (--dist-init-addr)"), None),
        Err(error) => {
            let remedy = "End what listens there (`ss -ltnp` names it), or give another \
                          --dist-init-addr";
            (format!("{address}: {error}"), Some(remedy.to_owned()))
        }
    }
}

fn run_dir(args: &ServeArgs) -> Result<String, String> {
    let folder = RunDir::create(args.process.run_dir.as_deref());
    let folder = folder.map_err(|error| error.to_string())?;
    let parent = folder.path().parent().unwrap_or(folder.path());
    Ok(parent.display().to_string())
}
