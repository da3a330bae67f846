//! Resources of the machine that this process may use.

use std::path::{Path, PathBuf};

/// Cores and memory that this process may use: the machine's, less those withheld by affinity
/// and control groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    /// Core numbers in the affinity mask, no more of them than the CPU quota of the control
    /// group pays for. Never empty.
    pub cores: Vec<usize>,
    /// Bytes of all memory.
    pub total_memory: u64,
    /// Bytes of memory that can be allocated without swapping.
    pub available_memory: u64,
    /// Memory limit of the control group in bytes, if one is set.
    pub memory_limit: Option<u64>,
}

impl Hardware {
    /// Asks the operating system. Memory that the system does not tell counts as unlimited.
    /// Without a list of cores, there is core 0 alone.
    pub fn detect() -> Self {
        Self::under(Path::new("/"))
    }

    /// Cores that the CPU quota of the control groups pays for at a time; `None` = no quota.
    pub fn cpu_quota() -> Option<f64> {
        let root = Path::new("/");
        let cgroup = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let groups = groups(root, &cgroup).into_iter();
        groups.filter_map(|group| group.quota()).reduce(f64::min)
    }

    /// Does the same as [`Hardware::detect`], with `/proc` and `/sys` below `root`.
    pub fn under(root: &Path) -> Self {
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let mut cores = field(&read("proc/self/status"), "Cpus_allowed_list:")
            .and_then(|list| parse_cores(list).ok())
            .filter(|cores| !cores.is_empty())
            .unwrap_or_else(|| vec![0]);
        let meminfo = read("proc/meminfo");
        let kib = |key| field(&meminfo, key).and_then(number).map(|kib| kib * 1024);
        let mut total_memory = kib("MemTotal:").unwrap_or(u64::MAX);
        let mut available_memory = kib("MemAvailable:").unwrap_or(total_memory);
        let mut memory_limit = None;
        for group in groups(root, &read("proc/self/cgroup")) {
            if let Some(quota) = group.cores() {
                cores.truncate(quota);
            }
            if let Some((limit, free)) = group.memory().filter(|(limit, _)| *limit < total_memory) {
                total_memory = limit;
                available_memory = available_memory.min(free);
                memory_limit = Some(limit);
            }
        }
        Self {
            cores,
            total_memory,
            available_memory,
            memory_limit,
        }
    }
}

/// A control group's folder; its files have other names in versions 2 and 1.
struct Group {
    path: PathBuf,
    v2: bool,
}

impl Group {
    fn read(&self, v2: &str, v1: &str) -> Option<u64> {
        number(&self.text(v2, v1)?)
    }

    fn text(&self, v2: &str, v1: &str) -> Option<String> {
        std::fs::read_to_string(self.path.join(if self.v2 { v2 } else { v1 })).ok()
    }

    /// Limit of the group, and the free part of it. Page cache that can be dropped is free.
    fn memory(&self) -> Option<(u64, u64)> {
        let limit = self.read("memory.max", "memory.limit_in_bytes")?;
        let used = self
            .read("memory.current", "memory.usage_in_bytes")
            .unwrap_or(0);
        let stat = self.text("memory.stat", "memory.stat").unwrap_or_default();
        let key = if self.v2 {
            "inactive_file "
        } else {
            "total_inactive_file "
        };
        let cache = field(&stat, key).and_then(number).unwrap_or(0);
        Some((limit, limit.saturating_sub(used.saturating_sub(cache))))
    }

    /// Whole cores that the CPU quota pays for, at least one.
    fn cores(&self) -> Option<usize> {
        Some((self.quota()? as usize).max(1))
    }

    /// Cores that the CPU quota pays for at a time.
    fn quota(&self) -> Option<f64> {
        let quota = self.text("cpu.max", "cpu.cfs_quota_us")?;
        let mut words = quota.split_whitespace();
        let quota: u64 = words.next()?.parse().ok()?;
        let period = match words.next() {
            Some(period) => period.parse().ok()?,
            None => self.read("cpu.cfs_period_us", "cpu.cfs_period_us")?,
        };
        (period > 0).then(|| quota as f64 / period as f64)
    }
}

/// This process's control groups and all their parents, whose limits hold too.
fn groups(root: &Path, cgroup: &str) -> Vec<Group> {
    let mut found = Vec::new();
    for line in cgroup.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let bases: &[&str] = match controllers {
            "" => &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
            c if c.split(',').any(|c| c == "memory") => &["sys/fs/cgroup/memory"],
            c if c.split(',').any(|c| c == "cpu") => {
                &["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"]
            }
            _ => continue,
        };
        for base in bases {
            for part in Path::new(path.trim_start_matches('/')).ancestors() {
                let path = root.join(base).join(part);
                found.push(Group {
                    path,
                    v2: controllers.is_empty(),
                });
            }
        }
    }
    found
}

/// The rest of the line that starts with `key`.
fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(key))
        .map(str::trim)
}

/// The number that a text starts with; `None` for `max`.
fn number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// Parses the kernel's list form, `0-3,8,10-11`; sorted, without duplicates.
pub(crate) fn parse_cores(list: &str) -> Result<Vec<usize>, String> {
    let mut cores = Vec::new();
    for part in list
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let core = |text: &str| {
            text.parse::<usize>()
                .map_err(|_| format!("`{part}` is not a core or a range of cores"))
        };
        let (first, last) = (core(first)?, core(last)?);
        // More cores than any machine has: a typing error.
        if last < first || last > 1 << 16 {
            return Err(format!("`{part}` is not a range of cores"));
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

#[cfg(test)]
mod tests;
