//! What the machine says of itself, looked at once.

use lockstep_config::{Hardware, ServeArgs};
use lockstep_process::clock;
use lockstep_types::Algorithms;
use rustix::process::{Resource, getrlimit};

use super::asked::Asked;
use crate::run_dir::RunDir;

/// Where transparent huge pages are set.
pub(super) const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// Everything that findings are made of.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) asked: Asked,
    pub(super) hardware: Hardware,
    /// Cores of the machine.
    pub(super) online: usize,
    /// Cores that the control group pays for, if it limits them.
    pub(super) quota: Option<f64>,
    /// The mode of huge pages; `None` = they are not offered.
    pub(super) huge_pages: Option<String>,
    /// Bytes free in `/dev/shm`.
    pub(super) shared_memory: Result<u64, String>,
    /// Descriptors: how many may be open now, and how many that may be raised to; `None` =
    /// any number.
    pub(super) open_files: (Option<u64>, Option<u64>),
    /// Bytes that may be locked, and of address space, at the most; `None` = any number.
    pub(super) locked_memory: Option<u64>,
    pub(super) address_space: Option<u64>,
    /// What the clock counts by.
    pub(super) clock_source: Option<String>,
    /// Whether something keeps the clock in step with others; `None` = the system doesn't say.
    pub(super) clock_in_step: Option<bool>,
    /// What was found of each port that is asked for; where it can't be had, what to do.
    pub(super) ports: Vec<(String, Option<String>)>,
    /// Where the run directory is, or why it can't be made.
    pub(super) run_dir: Result<String, String>,
}

impl Facts {
    /// Looks at everything.
    pub(super) fn collect(args: &ServeArgs, algorithms: &Algorithms) -> Self {
        let asked = Asked::of(args, algorithms);
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

/// The port where other nodes register: listens as a server would, and gives it up again.
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
