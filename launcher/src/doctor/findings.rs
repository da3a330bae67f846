//! Findings made of facts, each with a remedy if something is wrong.

use lockstep_devices::Finding;

use super::facts::{Facts, HUGE_PAGES};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Descriptors that the default limits of connections take.
const FILES: u64 = 8192;

/// All findings, in the order of the report.
pub(super) fn of(facts: &Facts) -> Vec<Finding> {
    let mut findings = vec![cores(facts)];
    findings.extend(threads(facts));
    findings.push(memory(facts));
    findings.extend(facts.asked.model.iter().cloned());
    findings.extend(kv_cache(facts));
    findings.push(huge_pages(facts));
    findings.push(shared_memory(facts));
    findings.push(open_files(facts));
    findings.push(locked_memory(facts));
    findings.push(address_space(facts));
    findings.push(clock(facts));
    findings.extend(facts.ports.iter().map(port));
    findings.push(run_dir(facts));
    findings.extend(options(facts));
    findings
}

fn cores(facts: &Facts) -> Finding {
    let (usable, online) = (facts.hardware.cores.len(), facts.online);
    let found = match (usable == online, facts.quota) {
        (true, _) => usable.to_string(),
        (false, None) => format!("{usable} of {online} may be used"),
        (false, Some(quota)) => format!(
            "{usable} of {online} may be used; the control group pays for {quota:.1} at a time"
        ),
    };
    let is_part = facts.quota.is_some_and(|quota| quota.fract() > 0.05);
    Finding::new("Cores", found)
        .problem_if(
            is_part,
            "a quota of whole cores keeps threads from being stopped in the middle of a step: \
             set the container's CPU limit to a whole number",
        )
        .problem_if(
            usable < 2,
            "two workers and the server share one core; give the container or the affinity mask \
             more",
        )
}

/// Number of compute threads, compared with the cores for them.
fn threads(facts: &Facts) -> Option<Finding> {
    let (threads, cores) = (facts.asked.threads?, facts.hardware.cores.len());
    let finding = Finding::new("Threads", format!("{threads} compute, on {cores} cores"));
    Some(finding.problem_if(
        threads > cores,
        "threads that share a core wait for each other in every operation; give fewer with \
         --threads-per-rank or --tp-size, or more cores",
    ))
}

fn memory(facts: &Facts) -> Finding {
    let hardware = &facts.hardware;
    let limit = match hardware.memory_limit {
        Some(_) => " (the control group's limit)",
        None => "",
    };
    let found = format!(
        "{} available of {}{limit}",
        bytes(hardware.available_memory),
        bytes(hardware.total_memory)
    );
    Finding::new("Memory", found).problem_if(
        hardware.available_memory < GIB,
        "less than 1 GiB holds the demo model and little else; free some, or raise the \
         container's limit",
    )
}

/// Sizes of the cache that the options would make here.
fn kv_cache(facts: &Facts) -> Option<Finding> {
    let sizes = facts.asked.kv.as_ref()?;
    Some(Finding::new("KV cache", sizes.as_str()))
}

/// Transparent huge pages, which make large weights cheaper to read.
fn huge_pages(facts: &Facts) -> Finding {
    let mode = facts.huge_pages.as_deref().unwrap_or("not offered");
    Finding::new("Huge pages", mode).problem_if(
        mode == "never",
        format!("`echo madvise > {HUGE_PAGES}` as root makes weights faster to read"),
    )
}

/// Shared memory, through which ranks of a node exchange their parts.
fn shared_memory(facts: &Facts) -> Finding {
    const NAME: &str = "Shared memory";
    let needed = facts.asked.shared_bytes.max(64 * MIB);
    match &facts.shared_memory {
        Ok(free) => Finding::new(NAME, format!("/dev/shm has {} free", bytes(*free))).problem_if(
            *free < needed,
            format!(
                "workers need {} of it to exchange their parts; start the container with \
                 --shm-size=1g, or mount a larger tmpfs there",
                bytes(needed)
            ),
        ),
        Err(error) => Finding::new(NAME, format!("/dev/shm: {error}"))
            .problem_if(true, "mount a tmpfs at /dev/shm"),
    }
}

/// Open files, one for each connection.
fn open_files(facts: &Facts) -> Finding {
    let (now, most) = facts.open_files;
    let text = |limit: Option<u64>| limit.map_or_else(|| "no limit".into(), |n| n.to_string());
    let found = format!("{}, can be raised to {}", text(now), text(most));
    let needed = facts
        .asked
        .connections
        .map_or(FILES, |all| all.max(FILES / 2));
    Finding::new("Open files", found).problem_if(
        most.is_some_and(|most| most < needed),
        format!(
            "the server raises its limit by itself, but not beyond this; all connections that it \
             lets in take {needed}: see `ulimit -Hn` or LimitNOFILE, or lower --max-connections"
        ),
    )
}

/// Memory that may be locked: drivers of GPUs lock memory.
fn locked_memory(facts: &Facts) -> Finding {
    let found = facts.locked_memory.map_or_else(|| "no limit".into(), bytes);
    let is_low = facts.locked_memory.is_some_and(|most| most < GIB);
    Finding::new("Locked memory", found).problem_if(
        facts.asked.gpus && is_low,
        "NCCL and GPUs' drivers lock what they copy; raise it with `ulimit -l unlimited`, \
         LimitMEMLOCK, or --ulimit memlock=-1 for a container",
    )
}

/// Address space: mapped weights take as much of it as their files have bytes.
fn address_space(facts: &Facts) -> Finding {
    let found = facts.address_space.map_or_else(|| "no limit".into(), bytes);
    Finding::new("Address space", found).problem_if(
        facts.address_space.is_some(),
        "mapped weights and caches count in full; take the limit away with `ulimit -v unlimited`",
    )
}

fn clock(facts: &Facts) -> Finding {
    let source = facts.clock_source.as_deref().unwrap_or("not told");
    let step = match facts.clock_in_step {
        Some(true) => "in step with others",
        Some(false) => "not in step with others",
        None => "whether it is in step with others is not told",
    };
    // Reading these clocks takes a call of the kernel, or of a device.
    let slow = ["hpet", "acpi_pm", "jiffies", "refined-jiffies"].contains(&source);
    Finding::new("Clock", format!("{source}, {step}"))
        .problem_if(
            facts.clock_in_step == Some(false) && facts.asked.nodes.is_some(),
            "traces of several machines don't fit together, and certificates may seem to be of \
             another time; start chrony or systemd-timesyncd on the host",
        )
        .problem_if(
            slow,
            "every look at this clock costs about a microsecond; boot with clocksource=tsc, or \
             give the virtual machine kvm-clock",
        )
}

fn port((found, remedy): &(String, Option<String>)) -> Finding {
    let finding = Finding::new("Port", found.as_str());
    finding.problem_if(remedy.is_some(), remedy.as_deref().unwrap_or_default())
}

fn run_dir(facts: &Facts) -> Finding {
    const NAME: &str = "Run directory";
    match &facts.run_dir {
        Ok(parent) => Finding::new(NAME, parent),
        Err(error) => Finding::new(NAME, "cannot be made").problem_if(true, error),
    }
}

/// The finding if the options make no server.
fn options(facts: &Facts) -> Option<Finding> {
    let refused = facts.asked.refused.as_ref()?;
    let finding = Finding::new("Options", "no server can be made of them to look at");
    Some(finding.problem_if(true, refused))
}

fn bytes(bytes: u64) -> String {
    match bytes < GIB {
        true => format!("{:.1} MiB", bytes as f64 / MIB as f64),
        false => format!("{:.1} GiB", bytes as f64 / GIB as f64),
    }
}
